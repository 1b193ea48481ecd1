"""Manual pages as plain text: a light reading of the man(7) and mdoc(7) macros, no typesetter.

A formatter such as groff or mandoc is often missing on a small machine, takes some 30 ms a page where it is there, and
breaks paragraphs into lines of one terminal's width. Reading the macros gives whole paragraphs, the same on every
machine. Tables come out as their cells; equations, conditions on the printer and drawn figures are left out.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from tasks.sample.mdoc import NO_TEXT as MDOC_SILENT
from tasks.sample.mdoc import inline as mdoc_inline

_GLYPHS = {
    "bu": "•", "em": "—", "en": "–", "hy": "-", "mi": "-", "lq": "“", "rq": "”", "oq": "‘", "cq": "’", "aq": "'",
    "dq": '"', "co": "©", "rg": "®", "tm": "™", "rs": "\\", "ha": "^", "ti": "~", "at": "@", "sh": "#", "Do": "$",
    "mu": "×", "di": "÷", "+-": "±", "->": "→", "<-": "←", "<=": "≤", ">=": "≥", "!=": "≠", "==": "≡", "de": "°",
    "Fo": "«", "Fc": "»", "ss": "ß", "ae": "æ", "AE": "Æ", "o/": "ø", "aa": "´", "ga": "`", "ul": "_", "br": "|",
    "bv": "|", "ba": "|", "sl": "/", "la": "⟨", "ra": "⟩", "lB": "[", "rB": "]", "lC": "{", "rC": "}", "ci": "○",
    "sq": "□", "dg": "†", "dd": "‡", "sc": "§", "12": "½", "14": "¼", "34": "¾", "Eu": "€", "Po": "£", "if": "∞",
    "'e": "é", "'a": "á", "'i": "í", "'o": "ó", "'u": "ú", "`e": "è", "`a": "à", ":a": "ä", ":o": "ö", ":u": "ü",
    ":A": "Ä", ":O": "Ö", ":U": "Ü", ",c": "ç", "~n": "ñ", "oa": "å", "*a": "α", "*b": "β", "*m": "µ", "*p": "π",
}  # fmt: skip
_STRINGS = {"lq": "“", "rq": "”", "Aq": "'", "R": "®", "Tm": "™", 'L"': '"', 'R"': '"', "--": "--", "C+": "C++"}
_ESCAPE = re.compile(
    r"""\\(?:
        ["\#].*                                             # a comment to the end of the line
      | \(u([0-9A-F]{4})\)? | \[u([0-9A-F]{4,6})\]          # 1 2: a code point
      | \((..) | \[([^\]]*)\] | C'([^']*)'                  # 3 4 5: a glyph by name
      | \*\((..) | \*\[([^\]]*)\] | \*(.)                   # 6 7 8: a string by name
      | [fFgmMkVY](?:\(..|\[[^\]]*\]|.)                     # fonts, colours, registers
      | n[+-]?(?:\(..|\[[^\]]*\]|.)
      | s(?:[+-]?\d{1,2}|[+-]?\(..|\[[^\]]*\]|'[^']*'|.)    # sizes
      | [bBDhHlLNoRSvwxXZ]'[^']*'                           # motions and drawings
      | (.)                                                 # 9: a single character
    )""",
    re.VERBOSE,
)
_PLAIN = {"-": "-", "e": "\\", "\\": "\\", " ": " ", "~": " ", "0": " ", "'": "'", "`": "`", ".": ".", "t": "\t"}
_FONT_MACROS = {"B", "I", "R", "SM", "SB", "BR", "RB", "BI", "IB", "IR", "RI", "OP"}
_PARAGRAPH = {"PP", "P", "LP", "Pp", "sp", "HP", "RS", "RE", "Bl", "El", "Lp", "TQ", "SY", "YS", "UE", "ME"}
_SILENT = {
    "ad", "na", "nh", "hy", "ne", "in", "ti", "ta", "ft", "ds", "nr", "rm", "so", "tr", "ll", "pl", "fam", "lf", "cc",
    "c2", "ec", "eo", "ps", "vs", "ss", "als", "PD", "DT", "AT", "UC", "IX", "rr", "nop", "bp", "po", "mk", "it", "ev",
    "fi", "cs", "tm", "hw", "pc", "\\}", "br", "nf", "EX", "EE", "HS", "UN", "wh", "ch", "return", "shift", "warn",
}  # fmt: skip
_MACRO = re.compile(r"^[.'][ \t]*(\\?[^\s\\]+|\\})[ \t]*(.*)$")
_HOLDS = re.compile(r"(?:n(?![\w(])|!'[^']*'[^']*')\s*(?:\\\{\\?)?\s*")  # the second is a translation tool's idiom
_CONTINUED = re.compile(r"\\c\n(?![.'])")
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"?|((?:\\ |[^\s"])(?:\\ |\S)*)')


def to_text(page: str) -> str:
    """The page's text: a line a heading, a line a paragraph; what stands in no-fill mode keeps its lines.

    An alias page (`.so`) and a file that is no manual page give the empty string.
    """
    lines = _CONTINUED.sub("", page).splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith((".TH", "'TH", ".Dd"))), None)
    if start is None:
        return ""
    reader = _Reader(mdoc=lines[start].startswith(".Dd"))
    for line in lines[start:]:
        reader.read(line)
    reader.flush()
    return "\n".join(reader.out).strip() + "\n"


def heading(page: str) -> list[str]:
    """Arguments of the title line (`.TH name section date source manual`), or an empty list."""
    found = re.search(r"^[.']\s*TH[ \t]+(.*)$", page, re.MULTILINE)
    return arguments(found[1]) if found else []


def unescape(text: str) -> str:
    """Text with escape sequences replaced by what they print."""
    return _ESCAPE.sub(_replace, text) if "\\" in text else text


def arguments(rest: str) -> list[str]:
    """A macro's arguments: separated by blanks, kept together by double quotes or an escaped blank."""
    comment = re.search(r'(?<!\\)\\["#]', rest)
    rest = rest[: comment.start()] if comment else rest
    return [unescape(m[1].replace('""', '"') if m[1] is not None else m[2]) for m in _ARGUMENT.finditer(rest)]


def _replace(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    glyph = match[3] or match[4] or match[5]
    string = match[6] or match[7] or match[8]
    if code:
        return chr(int(code, 16)) if int(code, 16) < 0xD800 else ""
    if glyph:
        return _GLYPHS.get(glyph, "")
    if string:
        return _STRINGS.get(string, "")
    return _PLAIN.get(match[9] or "", "")


@dataclass
class _Reader:
    """Reads a page line by line. `words` is the paragraph under way, `tag` awaits the item's text."""

    mdoc: bool
    out: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    fill: bool = True
    tag_next: bool = False
    skip_until: Callable[[str], bool] | None = None
    name: str = ""

    def flush(self) -> None:
        if self.words:
            self.out.append(" ".join(self.words))
            self.words = []

    def gap(self) -> None:
        """End the paragraph; one empty line before what follows."""
        self.flush()
        if self.out and self.out[-1]:
            self.out.append("")

    def read(self, line: str) -> None:
        if self.skip_until is not None:
            if self.skip_until(line):
                self.skip_until = None
            return
        macro = _MACRO.match(line)
        if macro:
            self.macro(macro[1], macro[2])
        elif line[:1] not in (".", "'"):
            self.text(unescape(line))

    def text(self, text: str) -> None:
        if not text.strip():
            self.gap()
        elif not self.fill or text[0] == " ":  # a leading blank keeps a line apart even where lines are filled
            self.flush()
            self.out.append(text.rstrip())
        else:
            self.words.append(text.strip())
        if self.tag_next and text.strip():
            self.tag_next = False
            self.flush()

    def macro(self, name: str, rest: str) -> None:
        if name in ("if", "ie", "el", "while"):
            self.condition(name, rest)
        elif name in ("de", "de1", "ig", "am", "dei"):
            end = rest.split()[1] if len(rest.split()) > 1 and name != "ig" else "."
            self.skip_until = lambda line: line.rstrip() == f".{end}"
        elif name in ("EQ", "PS", "Fd"):
            closing = {"EQ": ".EN", "PS": ".PE"}.get(name)
            self.skip_until = (lambda line: line.startswith(closing)) if closing else None
        elif name == "TS":
            self.gap()
            self.skip_until = lambda line: line.rstrip().endswith(".")  # the table's format ends with a full stop
            self.fill = False
        elif name in ("SH", "SS", "Sh", "Ss"):
            self.gap()
            self.fill = True
            self.out.append(self.inline(rest) if self.mdoc else " ".join(arguments(rest)))
            self.tag_next = name == "SH" and not rest.strip()
        else:
            self.body(name, rest)

    def body(self, name: str, rest: str) -> None:
        """Macros that set text or change how it is set."""
        if name in ("nf", "EX", "Bd", "Vb"):
            self.flush()
            self.fill = False
        elif name in ("fi", "EE", "Ed", "TE", "Ve"):
            self.flush()
            self.fill = True
        elif name in ("TP", "IP", "It"):
            self.item(name, rest)
        elif name in _PARAGRAPH:
            self.gap()
        elif name == "br":
            self.flush()
        elif self.mdoc:
            if name not in MDOC_SILENT and name not in _SILENT:
                self.text(self.inline(f"{name} {rest}"))
        elif name in _FONT_MACROS:
            self.font(name, arguments(rest))
        elif name in ("UR", "MT", "ME"):
            self.text(" ".join(arguments(rest)))

    def item(self, name: str, rest: str) -> None:
        self.gap()
        if name == "TP":
            self.tag_next = True
        elif name == "It":
            self.text(self.inline(rest))
            self.flush()
        else:
            tag = " ".join(arguments(rest)[:1])
            if tag:
                self.words.append(tag)
            if len(tag) > 2:  # a bullet or a number stands before its text, a term above it
                self.flush()

    def font(self, name: str, args: list[str]) -> None:
        if name == "OP":
            self.text(f"[{' '.join(args)}]")
        elif args:
            self.text(("" if len(name) == 2 and name[0] != "S" else " ").join(args))

    def inline(self, rest: str) -> str:
        text, self.name = mdoc_inline(arguments(rest), self.name)
        return text

    def condition(self, name: str, rest: str) -> None:
        """A page is read as a terminal shows it: `n` holds, all else does not."""
        holds = _HOLDS.match(rest) if name in ("if", "ie") else None
        if holds:
            if rest[holds.end() :]:
                self.read(rest[holds.end() :])
        elif "\\{" in rest and "\\}" not in rest:
            self.skip_until = lambda line: "\\}" in line
