"""The exceptions a user can cause; each says what, where and how to mend.

    SeqscaleError            ends a command with exit code 2 and one message, no traceback
    |-- InputError           an interactions file or another given file cannot be used
    |-- ConfigError          a setting is out of its bounds, or two settings contradict each other
    |-- StoreError           a sequence store is missing, half-written or of another version
    |-- IdError              an id of a batch is not a row of its table; also an IndexError
    |-- PlanError            a plan on disk does not fit the store or the ranks
    |-- JournalError         a record file holds a line that is not a record
    |-- LaunchError          a child process (ranks, sampler, registration) ended badly or too late
    `-- WarehouseError       the warehouse is missing, busy or not writable
        `-- QueryError       a query does not fit it: it was written by another version

Anything else that reaches the top is a fault of ours and keeps its traceback.
"""


class SeqscaleError(Exception):
    """Base of everything a user, a file or a machine can cause."""


class InputError(SeqscaleError):
    """A given file cannot be used."""


class ConfigError(SeqscaleError):
    """A setting is out of its bounds or contradicts another."""


class StoreError(SeqscaleError):
    """A sequence store cannot be read or written."""


class IdError(SeqscaleError, IndexError):
    """An id of a batch is not a row of its table."""


class PlanError(SeqscaleError):
    """A plan cannot be read or does not fit."""


class JournalError(SeqscaleError):
    """A journal holds something that is not a record."""


class LaunchError(SeqscaleError):
    """A child process ended badly or too late."""


class WarehouseError(SeqscaleError):
    """The warehouse cannot be read or written."""


class QueryError(WarehouseError):
    """A query does not fit the warehouse that is there."""
