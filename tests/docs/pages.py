"""README.md and docs/*.md as pages of fenced blocks, and the comments before a block that say how it is tested.

A comment stands directly before its block and is not shown to readers:

    <!-- not run: needs two hosts -->       the block is parsed, and its flags are compared with --help; nothing is run
    <!-- files: my.csv runs/demo -->        what lies in the page's folder: a file of prices, a small trained run
    <!-- setup: bars = jt.sample_bars() -->  Python that runs before the block, in the page's namespace
    <!-- smaller: updates=20 -> updates=1; --folds 6 -> --folds 2 -->  replaced before the block runs

Blocks of `python` and `shell` run from top to bottom, those of `text` show output or a drawing.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = ("python", "shell", "text")
MARKERS = ("not run", "files", "setup", "smaller")

_BLOCK = re.compile(
    r"(?P<comments>(?:^<!--(?:(?!-->)[\s\S])*-->\n)*)^```(?P<language>.*)\n(?P<code>(?:.*\n)*?)^```$", re.MULTILINE
)
_COMMENT = re.compile(r"<!-- ([a-z ]+):\s(.*?)\s?-->", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
      page, line: where its code begins, from 1.
      language: what stands behind the fence.
      code: as a reader sees it.
      markers: the comments before it, by name.
    """

    page: Path
    line: int
    language: str
    code: str
    markers: dict[str, str]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        return "not run" not in self.markers

    def small(self) -> str:
        """The code that is run."""
        code = self.code
        for pair in filter(None, self.markers.get("smaller", "").split("; ")):
            large, _, small = pair.partition(" -> ")
            assert large in code, f"{self}: nothing to replace, no {large!r}"
            code = code.replace(large, small)
        return code


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        markers = dict(_COMMENT.findall(match["comments"]))
        found.append(Block(page, line, match["language"], match["code"], markers))
    assert 2 * len(found) == len(re.findall("^```", text, re.MULTILINE)), f"{page.name}: a fence is not closed"
    return found
