"""`semmix data list | get | import | check`."""

from dataclasses import dataclass
from pathlib import Path

from tyro.conf import Positional

from semmix.data import check_data, get_data, import_data, list_data


@dataclass(frozen=True, kw_only=True)
class _DataCommand:
    root: Path | None = None
    """Folder of imported data sets; $SEMMIX_DATA or ~/.cache/semmix/datasets if not given."""


@dataclass(frozen=True, kw_only=True)
class DataListCommand(_DataCommand):
    """Show the known data sets and which of them are here."""

    def run(self) -> None:
        """Print a line for each."""
        list_data(self.root)


@dataclass(frozen=True, kw_only=True)
class DataGetCommand(_DataCommand):
    """Download a data set from its authors, check it and import it."""

    name: Positional[str]
    """The data set, such as cifar10."""

    def run(self) -> None:
        """Download what is not here."""
        get_data(self.name, self.root)


@dataclass(frozen=True, kw_only=True)
class DataImportCommand(_DataCommand):
    """Import a data set from files you have, after checking that they are that data set."""

    name: Positional[str]
    """The data set, such as cifar10."""
    source: Positional[Path]
    """An archive, an .npz or a folder; `semmix data list` says what each can be read from."""

    def run(self) -> None:
        """Import what is not here."""
        import_data(self.name, self.source, self.root)


@dataclass(frozen=True, kw_only=True)
class DataCheckCommand(_DataCommand):
    """Check an imported data set against its digests, or every file of an image folder."""

    name: Positional[str]
    """The data set, or the path of an image folder or of a .csv or .jsonl file."""

    def run(self) -> int:
        """Say what is wrong; return 1 if files of a folder cannot be used."""
        return check_data(self.name, self.root)
