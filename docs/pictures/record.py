#!/usr/bin/env python3
"""Turns the plain output of a session into an SVG that plays it, or a terminal's log into its last view.

    ./quickstart.sh --down >quickstart.log 2>&1
    docs/pictures/record.py quickstart.log docs/pictures/quickstart.svg

    stty columns 110 rows 34; script -qc 'nibble job watch JOB' watch.log
    docs/pictures/record.py --last-view watch.log docs/pictures/watch.svg

Without --last-view the log of a terminal is refused: its views are redrawn in place, hundreds of times. Lines of '$ command' and
'== heading' are emphasised. Of a run of progress lines only some are kept. The repository's
directory is shown as ~/nibble. Each line appears after the one before it; readers that play no animation see the last
screen.
"""
import argparse
import html
import pathlib
import re
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
COLUMNS, ROWS = 110, 30
CHARACTER, LINE = 7.8, 18  # pixels
CURSOR_UP = re.compile(r"\x1b\[\d*A")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # not allowed in XML; generated text may have them
PROGRESS = re.compile(r"^step +\d+/\d+|^\[[\d,]+ / [\d,]+\]|tokenized +\d+ %")


def screen_lines(text, progress):
    """The lines, with runs of progress lines thinned."""
    run, lines = [], []

    def flush():
        keep = max(1, len(run) // progress) if progress else 1
        lines.extend(line for i, line in enumerate(run) if i % keep == 0 or i == len(run) - 1)
        run.clear()

    for raw in text.split("\n"):
        line = CONTROLS.sub("", raw).rstrip()
        if PROGRESS.search(line):
            run.append(line)
            continue
        flush()
        if line or (lines and lines[-1]):
            lines.append(line)
    flush()
    return [line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…" for line in lines]


def style(line):
    if line.startswith("$ "):
        return "command"
    return "heading" if line.startswith("== ") else ""


def svg(lines, seconds_per_line):
    """The screen scrolls by one line at a time once it is full."""
    width, height = COLUMNS * CHARACTER + 24, ROWS * LINE + 24
    total = len(lines) * seconds_per_line + 4
    scrolls = max(0, len(lines) - ROWS)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        'aria-label="A recording of the quick start" font-family="ui-monospace, monospace" font-size="13">',
        "<style>",
        "  rect { fill: #0f172a } text { fill: #e2e8f0; white-space: pre }",
        "  .command { fill: #7dd3fc; font-weight: 600 } .heading { fill: #fcd34d }",
        f"  .line {{ animation-duration: {total:.1f}s; animation-timing-function: steps(1, end); animation-iteration-count: infinite }}",
    ]
    for i in range(len(lines)):
        at = 100 * i * seconds_per_line / total
        out.append(f"  @keyframes l{i} {{ 0% {{ opacity: 0 }} {at:.2f}% {{ opacity: 1 }} 100% {{ opacity: 1 }} }}")
    frames = ["0% { transform: translateY(0px) }"]
    for i in range(1, scrolls + 1):
        at = 100 * (ROWS + i - 1) * seconds_per_line / total
        frames.append(f"{at:.2f}% {{ transform: translateY({-i * LINE}px) }}")
    frames.append(f"100% {{ transform: translateY({-scrolls * LINE}px) }}")
    out.append("  @keyframes scroll { " + " ".join(frames) + " }")
    out.append(f"  .screen {{ animation: scroll {total:.1f}s steps(1, end) infinite; "
               f"transform: translateY({-scrolls * LINE}px) }}")
    out.append("  @media (prefers-reduced-motion: reduce) { .line, .screen { animation: none } }")
    out += ["</style>", f'<clipPath id="window"><rect x="0" y="8" width="{width:.0f}" height="{ROWS * LINE + 8}"/></clipPath>',
            f'<rect width="{width:.0f}" height="{height}" rx="8"/>', '<g clip-path="url(#window)"><g class="screen">']
    for i, line in enumerate(lines):
        if line:
            out.append(f'<text class="line {style(line)}" style="animation-name: l{i}" x="12" y="{24 + i * LINE}" '
                       f'xml:space="preserve">{html.escape(line)}</text>')
    out += ["</g></g>", "</svg>", ""]
    return "\n".join(out)


# Of the colours that nibble uses, by the number of the escape sequence.
INKS = {0: "#e2e8f0", 1: "#ffffff", 2: "#64748b", 31: "#f87171", 32: "#4ade80", 33: "#facc15", 34: "#60a5fa", 35: "#e879f9",
        36: "#22d3ee"}
SEQUENCE = re.compile(r"\x1b\[(\d*)([A-Za-z])")
SHADES = {"░": 0.25, "▒": 0.45, "▓": 0.7, "█": 1.0}
BRAILLE_DOTS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]  # column and row by bit


def last_view(log):
    """The rows of the last view that was redrawn in place: lists of characters with their inks."""
    rows, row, column, ink, top, bottom, at = [[]], 0, 0, 0, 0, 0, 0
    while at < len(log):
        sequence = SEQUENCE.match(log, at)
        if sequence:
            at = sequence.end()
            number, kind = int(sequence[1] or 0), sequence[2]
            if kind == "m":
                ink = number
            elif kind == "A":
                row = top = max(0, row - max(1, number))
            elif kind == "K":
                del rows[row][column:]
            elif kind == "J":
                bottom = row
                del rows[row + 1 :], rows[row][column:]
            continue
        character, at = log[at], at + 1
        if character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
            if row == len(rows):
                rows.append([])
        elif character >= " ":
            rows[row].extend([(" ", 0)] * (column - len(rows[row])))
            rows[row][column : column + 1] = [(character, ink)]
            column += 1
    return rows[top:bottom]


def view_svg(rows):
    """Dots and shades are drawn, since fonts disagree about their width; other characters are text."""
    width, height = max(len(row) for row in rows) * CHARACTER + 24, len(rows) * LINE + 24
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
           'aria-label="The live view of a training run" font-family="ui-monospace, monospace" font-size="13">',
           "<style>text { white-space: pre }</style>", f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0f172a"/>']
    for i, row in enumerate(rows):
        top, runs = 10 + i * LINE, []
        for column, (character, ink) in enumerate(row):
            x, fill = 12 + column * CHARACTER, INKS.get(ink, INKS[0])
            dots = ord(character) - 0x2800
            if 0 < dots < 0x100:
                for bit, (across, down) in enumerate(BRAILLE_DOTS):
                    if dots >> bit & 1:
                        out.append(f'<circle cx="{x + (across + 0.5) * CHARACTER / 2:.1f}" '
                                   f'cy="{top + (down + 0.5) * LINE / 4:.1f}" r="1.3" fill="{fill}"/>')
            elif character in SHADES:
                out.append(f'<rect x="{x:.1f}" y="{top + 3}" width="{CHARACTER}" height="{LINE - 6}" fill="{fill}" '
                           f'opacity="{SHADES[character]}"/>')
            elif character != " ":
                if runs and runs[-1][2] == ink and runs[-1][0] + len(runs[-1][1]) == column:
                    runs[-1][1] += character
                else:
                    runs.append([column, character, ink])
        for column, text, ink in runs:
            out.append(f'<text x="{12 + column * CHARACTER:.1f}" y="{top + 13}" textLength="{len(text) * CHARACTER:.1f}" '
                       f'lengthAdjust="spacingAndGlyphs" fill="{INKS.get(ink, INKS[0])}">{html.escape(text)}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("log")
    arguments.add_argument("svg")
    arguments.add_argument("--progress", type=int, default=8, help="lines to keep of each run of progress lines")
    arguments.add_argument("--seconds-per-line", type=float, default=0.35)
    arguments.add_argument("--from-line", default="== a cluster", help="leave out what comes before the line that begins so")
    arguments.add_argument("--last-view", action="store_true", help="of a terminal's log: its last view that was redrawn in place")
    flags = arguments.parse_args()
    with open(flags.log, encoding="utf-8", errors="replace", newline="") as file:
        text = file.read()
    if flags.last_view:
        rows = last_view(text)
        if not CURSOR_UP.search(text) or not rows:
            sys.exit(f"{flags.log}: has no view that is redrawn in place; record it with script(1)")
        with open(flags.svg, "w", encoding="utf-8") as file:
            file.write(view_svg(rows))
        return
    text = text.replace("\r\n", "\n")
    if CURSOR_UP.search(text):
        sys.exit(f"{flags.log}: a terminal's log, with views redrawn in place; record the plain output: COMMAND >LOG 2>&1")
    lines = screen_lines(text.replace(str(REPOSITORY), "~/nibble"), flags.progress)
    starts = [i for i, line in enumerate(lines) if line.startswith(flags.from_line)]
    if not starts:
        sys.exit(f"{flags.log}: no line begins with '{flags.from_line}'; --from-line names another")
    with open(flags.svg, "w", encoding="utf-8") as file:
        file.write(svg(lines[starts[0]:], flags.seconds_per_line))


if __name__ == "__main__":
    main()
