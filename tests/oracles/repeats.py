"""Which occurrences of sentences are cut, told one by one: what curation's arrays are held against."""

from itertools import groupby
from typing import Any


def repeats(rows: list[dict[str, Any]], least: int) -> dict[tuple[int, int, int, int], str]:
    """(part, shard, row, start) of each occurrence to be cut → doc_id in hexadecimal digits, where the sentence stays.

    A sentence is cut from a document of a day when by then it stands in `least` documents, unless it is the first: of
    the earliest day, there in the longest document. Rows of part −1 tell how many documents of an earlier day had it.
    """
    found = {}
    rows = sorted(rows, key=lambda row: (row["hash"], row["day"], -row["characters"], row["doc_id"], row["start"]))
    for _, group in groupby(rows, key=lambda row: row["hash"]):
        all_of_it, documents = list(group), 0
        first = all_of_it[0]
        for _, day in groupby(all_of_it, key=lambda row: row["day"]):
            today = list(day)
            documents += len({row["doc_id"] for row in today if row["part"] >= 0})
            documents += sum(row["documents"] for row in today if row["part"] < 0)
            for row in today:
                if documents >= least and row is not first and row["part"] >= 0:
                    place = (row["part"], row["shard"], row["row"], row["start"])
                    found[place] = first["doc_id"].hex()
    return found
