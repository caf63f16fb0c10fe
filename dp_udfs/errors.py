"""The error tree: every message names a parameter, its value, what is allowed and what to do next.

Messages speak of parameters, claims and losses; never of a true count, a person or a row.
"""


class PrivacyError(Exception):
    """Anything that discreet refuses to do."""


class InvalidParameterError(PrivacyError, ValueError):
    """A number or name outside what the mathematics allows."""


class SettingsError(PrivacyError):
    """A settings file or option that cannot be used; the message names file, table and key."""


class StorageError(SettingsError):
    """A table that cannot be read or written: a full disk, a torn commit, or a wrong place.

    It can come in the middle of a run; what was allocated before stays allocated.
    """


class UnboundedContributionError(PrivacyError):
    """A question whose guarantee needs a contribution bound that is missing or not sound."""


class ClaimError(PrivacyError):
    """A claim that cannot do what is asked: unknown, expired, or bound to another question."""


class LedgerConflictError(PrivacyError):
    """The ledger kept moving, or is not what it should be, so nothing was written."""


class BudgetExhaustedError(PrivacyError):
    """A demand larger than what is left.

    Attributes
    ----------
    facts : dict of str to object
        What was asked, what is left and when it resets, for programs to read.
    """

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.facts = facts


class BudgetWaitingError(BudgetExhaustedError):
    """A demand that waits for budget to be unlocked: ask again later, under the same name."""


class CallLimitError(BudgetExhaustedError):
    """The calls of an account are used up; its units may not be."""
