"""The site also shows `benchmarks/results`, whose pages lie beside the documentation's folder.

On disk a page of docs/ links to `../benchmarks/results/NAME/README.md`, and one of these back to
`../../../docs/PAGE.md`, so that links work wherever the files are read. The site has no folder
docs/.
"""

import pathlib
import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page


def on_files(files: Files, config: MkDocsConfig) -> Files:
  root = pathlib.Path(config.docs_dir).parent
  for path in sorted(root.glob("benchmarks/results/**/README.md")):
    name = str(path.relative_to(root))
    files.append(File.generated(config, name, abs_src_path=str(path)))
  return files


def on_page_markdown(markdown: str, page: Page, **_) -> str:
  link = r"(\]\(|^\[[\w.-]+\]: )"
  if page.file.src_uri.startswith("benchmarks/"):
    return re.sub(link + r"((?:\.\./)+)docs/", r"\1\2", markdown, flags=re.MULTILINE)
  return re.sub(link + r"\.\./((?:\.\./)*benchmarks/)", r"\1\2", markdown, flags=re.MULTILINE)
