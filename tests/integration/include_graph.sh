#!/usr/bin/env bash
# A layer includes only itself and layers listed before it in the table of docs/architecture.md.
set -euo pipefail

python3 - "$2" <<'PYTHON'
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
table = re.findall(r"^\| `(include/rrfp|src/(\w+))/?` \|", (root / "docs/architecture.md").read_text(),
                   re.M)
layers = [name or "rrfp" for _, name in table]
rank = {name: i for i, name in enumerate(layers)}
wrong = []

folders = sorted(p.name for p in (root / "src").iterdir() if any(p.glob("*.[ch]*")))
wrong += [f"src/{name} is missing from the table of docs/architecture.md"
          for name in folders if name not in rank]


def check(path, layer):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        include = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
        if not include:
            continue
        target = include.group(1).split("/")[0] if "/" in include.group(1) else None
        where = f"{path.relative_to(root)}:{number}"
        if target not in rank:
            wrong.append(f'{where}: "{include.group(1)}" names no layer')
        elif rank[target] > rank[layer]:
            wrong.append(f"{where}: {layer} includes the higher layer {target}")


headers = sorted((root / "include/rrfp").glob("*.h"))
sources = [p for name in folders if name in rank for p in sorted((root / "src" / name).rglob("*"))
           if p.suffix in (".c", ".h", ".cpp")]
for header in headers:
    check(header, "rrfp")
for source in sources:
    check(source, source.relative_to(root / "src").parts[0])

if len(layers) < 5 or len(headers) < 4 or not sources:
    wrong.append("the table or the sources were not found")
# The machine drivers and explorers share must stay free of clocks, threads and other layers.
allowed = {"assert", "limits", "stdarg", "stdbool", "stddef", "stdint", "stdio", "stdlib", "string"}
for source in sorted((root / "src/core").glob("*.[ch]")):
    for name in re.findall(r"#\s*include\s+<(\w+)\.h>", source.read_text()):
        if name not in allowed:
            wrong.append(f"{source.relative_to(root)}: core includes <{name}.h>")

print("\n".join(wrong) or f"{len(headers)} headers and {len(sources)} sources keep the order")
sys.exit(1 if wrong else 0)
PYTHON
