"""Write `sql/schema.sql` anew from the migrations, below its hand-written head: `schema.py`; `schema.py --check` only compares.

Tables and indexes come first, then the functions, views and comments that the migrations include. That is right as long as no
migration alters what an earlier one made; from then on the text below the head is edited by hand, and the test that compares
the schema with the replay of all migrations says whether it is still true.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

SQL = Path(__file__).parent.parent / "sql"
MARK = "-- What follows is assembled from the migrations by .ci/schema.py.\n"
INCLUDE = re.compile(r"^-- include .*\n", re.MULTILINE)
HEADER = re.compile(r"\A(?:--.*\n)+\n")


def assemble() -> str:
    """Return what `schema.sql` should be."""
    texts = [HEADER.sub("", file.read_text()) for file in sorted((SQL / "migrations").glob("*.sql"))]
    made = "\n".join(text for each in texts if (text := INCLUDE.sub("", each).strip() + "\n").strip())
    included = "".join(line for each in texts for line in INCLUDE.findall(each))
    head, mark, _ = (SQL / "schema.sql").read_text().partition(MARK)
    return f"{head}{mark or MARK}\n{made}\n{included}"


def main() -> int:
    wanted, file = assemble(), SQL / "schema.sql"
    if file.read_text() == wanted:
        return 0
    if "--check" in sys.argv:
        print("sql/schema.sql is not what the migrations make: run python .ci/schema.py", file=sys.stderr)
        return 1
    file.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
