"""Inline macros of mdoc(7), the manual pages' language of the BSD systems and macOS, read as plain words."""

NO_TEXT = {"Dd", "Dt", "Os", "Bk", "Ek", "Rs", "Re", "Sm", "Tn", "Ud", "Bf", "Ef", "Db", "Fd"}
_PAIRS = {"Dq": "“”", "Qq": '""', "Sq": "‘’", "Pq": "()", "Bq": "[]", "Aq": "<>", "Brq": "{}", "Op": "[]", "Ql": "‘’"}
_OPEN = {"Oo": "[", "Po": "(", "Bo": "[", "Do": "“", "So": "‘", "Ao": "<", "Bro": "{", "Qo": '"'}
_CLOSE = {"Oc": "]", "Pc": ")", "Bc": "]", "Dc": "”", "Sc": "’", "Ac": ">", "Brc": "}", "Qc": '"'}
_PLAIN = {
    "Ar", "Cm", "Ic", "Li", "Pa", "Ev", "Va", "Vt", "Fa", "Ft", "Em", "Sy", "No", "Dv", "Er", "An", "Lk", "Mt", "Ad",
    "Cd", "In", "Lb", "Ms", "Nd", "Tn", "Xo", "Xc", "St", "At", "Bx", "Fx", "Nx", "Ox", "Ux", "Bsx", "Dx", "Ns", "Pf",
    "Ap", "Fn", "Fo", "Fc", "Xr", "Fl", "Nm", "D1", "Dl", "%A", "%T", "%B", "%D", "%R", "%U", "%O", "%J", "%N", "%V",
}  # fmt: skip
_SYSTEMS = {"Ux": "UNIX", "Bx": "BSD", "Fx": "FreeBSD", "Nx": "NetBSD", "Ox": "OpenBSD", "At": "AT&T UNIX"}
_NO_SPACE_BEFORE = set(".,:;)]?!")


def inline(tokens: list[str], name: str) -> tuple[str, str]:
    """Words of one macro line, and the page's name (set by the first `Nm` with an argument, used by a bare one)."""
    out: list[str] = []
    closing: list[str] = []
    glue = False
    position = 0

    def say(text: str) -> None:
        nonlocal glue
        if out and (glue or text in _NO_SPACE_BEFORE or out[-1] in ("[", "(", "<", "{", "“", "‘")):
            out[-1] += text
        else:
            out.append(text)
        glue = False

    while position < len(tokens):
        word = tokens[position]
        following = tokens[position + 1] if position + 1 < len(tokens) else None
        bare = following is None or _is_macro(following) or following in _NO_SPACE_BEFORE
        if word in _PAIRS:
            say(_PAIRS[word][0])
            closing.append(_PAIRS[word][1])
            glue = True
        elif word in _OPEN or word in _CLOSE:
            glue = glue or word in _CLOSE
            say(_OPEN.get(word) or _CLOSE[word])
            glue = word in _OPEN
        elif word == "Fl":
            say("-")
            glue = not bare
        elif word == "Nm":
            name = name if bare else name or str(following)
            if bare and name:
                say(name)
        elif word == "Ar" and bare:
            say("file ...")
        elif word == "Nd":
            say("-")
        elif word in ("Ns", "Ap"):
            glue = True
        elif word == "Pf" and following is not None:
            say(following)
            glue, position = True, position + 1
        elif word == "Xr" and following is not None:
            section = tokens[position + 2] if position + 2 < len(tokens) else ""
            say(f"{following}({section})" if section[:1].isdigit() else following)
            position += 2 if section[:1].isdigit() else 1
        elif word in ("Fn", "Fo") and following is not None:
            rest = tokens[position + 2 :]
            say(f"{following}({', '.join(item for item in rest if item not in _NO_SPACE_BEFORE)})")
            position = len(tokens)
        elif word in _SYSTEMS:
            say(_SYSTEMS[word])
        elif word not in _PLAIN:
            say(word)
        position += 1
    text = " ".join(out)
    stop = text[-1:] if closing and text[-1:] in ".,;:" else ""  # the full stop after a bracket stands outside it
    return text.removesuffix(stop) + "".join(reversed(closing)) + stop if closing else text, name


def _is_macro(word: str) -> bool:
    return word in _PLAIN or word in _PAIRS or word in _OPEN or word in _CLOSE
