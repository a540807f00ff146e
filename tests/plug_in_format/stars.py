"""A format of another package: answers with one to five stars of confidence."""

from calibrant.files.formats.logs.base import LogFile, LogFormat, LogTable
from calibrant.files.options import ReadOptions


class Stars(LogFormat):
    """JSON lines with `stars` and `hit`."""

    tool = "stars"

    def recognises(self, file: LogFile) -> bool:
        """Return whether the first line has stars."""
        return {"stars", "hit"} <= file.first.keys()

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row a line."""
        table = LogTable(self.tool)
        table.signal = "stars"
        for _, row in file.rows():
            table.add(confidence=row["stars"] / 5, correct=row["hit"])
        return table
