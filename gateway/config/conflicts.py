"""Relative file names of a document are beside that document, wherever the process was started.

Locates by the path of a word within its document, so that no parser of words needs to know where the document is.
"""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote, unquote

from tenancy.document import Locate

IN_CONFIG = re.compile(
    r"""  policy | usage_log | route_log
    | (?!.*\.selector\.) [\w.\[\]]*_file
    | (extproc\.)? tls\.\w+
    | model_list\[\d+\]\. (tokenizer|chat_template|calibration)
    | discovery\.file\.path
    """,
    re.VERBOSE,
)
"""Words of hearth.yaml that are names of files."""

IN_POLICY = re.compile(r"auth\.(keys_dir|hmac_secret_file|jwt\.jwks_file)")

URLS = re.compile(r"redis|discovery\.redis\.url")
"""Words whose URL may name files in its options."""

_FILE_OPTION = re.compile(r"(?<=[?&])(ssl_ca_certs|ssl_certfile|ssl_keyfile)=([^&]+)")

NOT_A_FILE = {"tokenizer": "pod"}
"""By the last part of a path: the text that is another way to say it."""


def beside(document: Path, words: re.Pattern[str]) -> Locate:
    """Return what makes relative file names of a document names beside it. `words`: the paths at which files stand."""
    folder = document.parent

    def located(name: str) -> str:
        return str(folder / name)

    def locate(path: str, text: str) -> str:
        if URLS.fullmatch(path):
            return _FILE_OPTION.sub(lambda found: f"{found[1]}={quote(located(unquote(found[2])))}", text)
        if not text or not words.fullmatch(path) or NOT_A_FILE.get(path.rpartition(".")[2]) == text:
            return text
        return located(text)

    return locate
