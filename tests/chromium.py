"""A Chromium without a window, for pages that must be looked at as a reader does."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome
    from selenium.webdriver.remote.webelement import WebElement

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def browser(downloads: Path, size: tuple[int, int] = (1300, 1000)) -> Iterator["Chrome"]:
    """The machine's own browser and driver: nothing is fetched. Files it saves go to `downloads`."""
    from selenium import webdriver

    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium with its chromedriver on this machine (Debian: apt install chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(word)
    options.add_argument(f"--window-size={size[0]},{size[1]}")
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options, webdriver.ChromeService(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def click(element: "WebElement") -> None:
    """As a person does: bring it to the middle of the window first, then press it there."""
    element.parent.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()
