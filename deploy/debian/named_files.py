"""Checks that the files which the pages of a package name are in the package.

    python3 deploy/debian/named_files.py DIRECTORY      DIRECTORY: such as /usr/share/doc/nibble

A page names a file by a relative link, or by its path in the repository: those of the folders that a package has are checked. Prints what is
missing and exits with 1.
"""

import pathlib
import re
import sys

FOLDERS = "docs|examples|deploy/prometheus|deploy/grafana|deploy/kubernetes"


def names_in(page, root):
    """Each file that the page names, as a path."""
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in link:
            yield page.parent / link
    for name in re.findall(rf"(?<![\w/.-])(?:{FOLDERS})/[\w./-]*[\w/]", text):
        yield root / name


def main():
    root = pathlib.Path(sys.argv[1])
    pages = sorted(root.rglob("*.md"))
    named = {(name.resolve(), page) for page in pages for name in names_in(page, root)}
    missing = sorted((str(name), str(page.relative_to(root))) for name, page in named if not name.exists())
    for name, page in missing:
        print(f"{page} names {name}, which is not there")
    print(f"{len(pages)} pages name {len({name for name, _ in named})} files, {len(missing)} missing")
    sys.exit(1 if missing or not pages else 0)


if __name__ == "__main__":
    main()
