"""Manual pages as text: small pages whose reading is known, and every page of this machine's first section."""

import pytest

from tasks.sample import man_pages
from tasks.sample.roff import arguments, heading, to_text, unescape

MAN = r"""'\" t
.\" a comment
.ie \n(.g .ds Aq \(aq
.el       .ds Aq '
.TH FOO 1 2024\-05\-06 "foo 1.0" "User Commands"
.SH NAME
foo \- do the\c
 thing\(bu
.SH "THE OPTIONS"
First line
of a paragraph\&.
.PP
.BR cat (1),
.BI \-\-size= SIZE
.TP
\fB\-a\fR, \fB\-\-all\fR
take \fIall\fP of them
.IP \(bu 2
a bullet
.if t .br
.if n \{\
.RS 4
.\}
.nf
$ foo  \-a
  two
.fi
.if t \{
never shown
.\}
.de XX
neither
..
.SS Small
"Quoted\(dq \*(lqwords\*(rq \[u4E2D]\(co\s-1X\s0 a\ b
"""

MDOC = r""".Dd May 6, 2024
.Dt FOO 1
.Os
.Sh NAME
.Nm foo
.Nd remote thing
.Sh SYNOPSIS
.Nm foo
.Op Fl a
.Op Fl b Ar address
.Sh DESCRIPTION
.Nm
talks to
.Xr ssh 1 ,
with
.Dq quoted words .
.Bl -tag
.It Fl v
Be verbose.
.El
"""


def test_man_macros():
    assert to_text(MAN).splitlines() == [
        "NAME",
        "foo - do the thing•",
        "",
        "THE OPTIONS",
        "First line of a paragraph.",
        "",
        "cat(1), --size=SIZE",
        "",
        "-a, --all",
        "take all of them",
        "",
        "• a bullet",
        "",
        "$ foo  -a",
        "  two",
        "",
        "Small",
        '"Quoted" “words” 中©X a b',
    ]


def test_mdoc_macros():
    assert to_text(MDOC).splitlines() == [
        "NAME",
        "foo - remote thing",
        "",
        "SYNOPSIS",
        "foo [-a] [-b address]",
        "",
        "DESCRIPTION",
        "foo talks to ssh(1), with “quoted words”.",
        "",
        "-v",
        "Be verbose.",
    ]


@pytest.mark.parametrize("page", ["", ".so man1/other.1\n", "plain text\nwithout a title\n"])
def test_no_page_no_text(page):
    assert to_text(page).strip() == ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [('FOO "two words" three', ["FOO", "two words", "three"]), ('"say ""hi""" \\" note', ['say "hi"']), ("", [])],
)
def test_arguments(line, expected):
    assert arguments(line) == expected


def test_escapes():
    assert unescape(r"\fBbold\fP\-x \(lqa\(rq \e \~ \[rs] \*(Aq \h'1n'") == "bold-x “a” \\   \\ ' "


def test_title_line():
    assert heading(MAN)[:3] == ["FOO", "1", "2024-05-06"]


def test_pages_of_this_machine_read_as_text():
    pages = [sample for _, sample in zip(range(150), man_pages.english(0), strict=False)]
    if not pages:
        pytest.skip("this machine has no manual pages; the forms above are read all the same")
    for page in pages:
        lines = page.text.splitlines()
        leaked = [
            line for line in lines if line.startswith((".SH", ".PP", ".TP", ".B ", ".IP", ".BR")) or "\\f" in line
        ]
        assert len(leaked) <= 3, (page.id, leaked[:3])  # pages that are about roff itself show some
    assert sum(page.timestamp is not None for page in pages) > 0
