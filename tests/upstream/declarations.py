# SPDX-License-Identifier: Apache-2.0
"""What C sources declare: structures with their fields, functions, and names of constants. No whole parser of C."""

from __future__ import annotations

import re
from collections.abc import Iterator

_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_STRING_OR_COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|/\*.*?\*/|//[^\n]*', re.DOTALL)
_BESIDE = re.compile(r"\s*(?:PRI\w+\s*)?")
_STRUCT = re.compile(r"\b(?:typedef\s+)?struct\s*(\w*)\s*\{")
_FUNCTION = re.compile(r"(?:^|[;}\n])\s*(?:extern\s+)?((?:[a-z_]\w*[\s\*]+)+?\**)\s*(\w+)\s*\(([^;{}]*?)\)\s*[;{]")
_POINTER = re.compile(r"([\w\s\*]+?)\(\s*\*\s*(\w+)\s*\)\s*\((.*)\)$", re.DOTALL)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)", re.DOTALL)
_MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.MULTILINE)
_ENUM = re.compile(r"\benum\s*\w*\s*\{([^}]*)\}")
_QUALIFIERS = re.compile(r"\b(?:extern|const|volatile|static|inline|struct|enum)\b")
_NOT_FUNCTIONS = frozenset({"return", "if", "while", "for", "switch", "sizeof", "defined", "else"})


def plain(text: str) -> str:
    """Returns C without comments, attributes and directives of the preprocessor but for definitions."""
    text = _ATTRIBUTE.sub(" ", _without_comments(text).replace("\\\n", " "))
    return re.sub(r"^\s*#\s*(?!define).*$", "", text, flags=re.MULTILINE)


def _without_comments(text: str) -> str:
    return _STRING_OR_COMMENT.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)


def structures(text: str) -> dict[str, dict[str, str]]:
    """Returns the fields of each structure with their types, by its tag and its typedef."""
    found: dict[str, dict[str, str]] = {}
    for match in _STRUCT.finditer(text):
        end = _closing(text, match.end())
        fields = dict(_fields(text[match.end() : end]))
        alias = re.match(r"\}\s*\**(\w+)\s*;", text[end : end + 200])
        for name in filter(None, (match[1], alias and alias[1])):
            found.setdefault(name, fields)
    return found


def aliases(text: str) -> dict[str, str]:
    """Returns the typedef of each structure and enumeration that has one, by its tag."""
    found = dict(re.findall(r"\btypedef\s+(?:struct|enum)\s+(\w+)\s+(\w+)\s*;", text))
    for match in _STRUCT.finditer(text):
        end = _closing(text, match.end())
        if match[1] and (alias := re.match(r"\}\s*(\w+)\s*;", text[end : end + 200])):
            found[match[1]] = alias[1]
    return found


def functions(text: str) -> dict[str, str]:
    """Returns the prototypes of all functions, without the names of parameters.

    >>> functions("extern int slurm_load(time_t at, char **said);")
    {'slurm_load': 'int (time_t, char **)'}
    """
    text = re.sub(r"^\s*#.*$", ";", text, flags=re.MULTILINE)
    return {
        name: f"{_kind(result)} ({_parameters(parameters)})"
        for result, name, parameters in _FUNCTION.findall(text)
        if name not in _NOT_FUNCTIONS and not _NOT_FUNCTIONS & set(result.split())
    }


def constants(text: str) -> set[str]:
    """Returns the names that are defined, by the preprocessor or in an enumeration."""
    listed = (part.partition("=")[0].strip() for body in _ENUM.findall(text) for part in body.split(","))
    return set(_MACRO.findall(text)) | {name for name in listed if name.isidentifier()}


def literals(text: str) -> list[str]:
    """Returns the string literals, with those that stand side by side as one."""
    text, found, end = _without_comments(text), list[str](), -1
    for match in _STRING.finditer(text):
        if found and _BESIDE.fullmatch(text, end, match.start()):
            found[-1] += match[1]
        else:
            found.append(match[1])
        end = match.end()
    return found


def _closing(text: str, start: int) -> int:
    depth = 1
    for match in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if match[0] == "{" else -1
        if not depth:
            return match.start()
    return len(text)


def _fields(body: str) -> Iterator[tuple[str, str]]:
    # Fields of a structure within count as this one's own.
    for statement in re.sub(r"\b(?:struct|union)\s*\w*\s*\{|\}[^;]*;|#.*", " ", body).split(";"):
        words = " ".join(statement.split())
        if pointer := _POINTER.search(words):
            yield pointer[2], f"{_kind(pointer[1])} (*)({_parameters(pointer[3])})"
            continue
        first, *others = words.split(",")
        match = re.fullmatch(r"(.*?)(\**)\s*(\w+)\s*((?:\[.*\])?)\s*(?::\s*\w+)?", first)
        if match is None or not match[1].strip():
            continue
        yield match[3], _kind(match[1] + match[2] + match[4])
        for other in others:
            name = re.search(r"(\**)\s*(\w+)", other)
            if name:
                yield name[2], _kind(match[1] + name[1])


def _parameters(text: str) -> str:
    parts = [" ".join(part.split()) for part in re.split(r",(?![^(]*\))", text)]
    return ", ".join(_kind(_without_name(part)) for part in parts)


def _without_name(parameter: str) -> str:
    match = re.fullmatch(r"(.*[\s\*])(\w+)((?:\[.*\])?)", parameter)
    if match is None or not match[1].replace("const", "").replace("struct", "").strip():
        return parameter
    return match[1] + ("*" if match[3] else "")


def _kind(text: str) -> str:
    bare = " ".join(_QUALIFIERS.sub(" ", text).replace("*", " * ").split())
    return bare.replace("* *", "**").replace("* *", "**")
