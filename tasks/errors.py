"""Errors meant for a person: each message says what, where, what was expected and what to do."""


class AthanorError(Exception):
    """Any error that the project itself raises. The command line prints it as one line and exits with 1."""


class ConfigError(AthanorError):
    """Configuration, recipe or contract that cannot be used. The command line exits with 2."""


class DataError(AthanorError):
    """Data that cannot be used as asked; names file, row or key."""


class ConservationError(DataError):
    """Counts that do not add up (read = kept + dropped + quarantined). Never to be ignored."""


class StorageError(AthanorError):
    """A store that cannot be read or written."""


class UnreadableError(StorageError):
    """One object that cannot be read, although its store answers: it is quarantined where others can go on."""


class ClusterError(AthanorError):
    """Dask workers or a scheduler that are gone. What was finished is kept; the same step goes on from there."""
