"""Every error Gofer raises on purpose.

GoferError
├── ConfigError          what was configured cannot work; the text says what to change
├── StoreError
│   ├── StoreUnavailable the database cannot take the work now; try again
│   └── StoreBusy        another process holds this SQLite file
├── Refused              a request could not be verified
│   └── Unset            … because the secret to verify it with is not set
├── Forbidden            it is known who asks, and they may not
├── TooOften             it was tried too often; `retry_after` says when to try again
├── Stale                it has changed since it was read
├── Malformed            a verified request makes no sense
├── TooBusy              more is waiting than can be kept safely
├── NotFound             the thing named does not exist
├── Conflict             it exists, but is not in a state that allows this
├── Fenced               this worker no longer owns the job it writes for
└── ServiceError         an outside service did not do what was asked
    ├── Temporary        it may later; `retry_after` says when, if the service did
    └── Permanent        it never will, whatever is repeated
        └── Gone         … because what is to be changed was deleted there; it may be made anew
"""

from __future__ import annotations


class GoferError(Exception):
    """Something went wrong."""

    code = "error"
    repeats_others = False
    """Whether its text repeats what came from outside and strangers may have written. A run that reads it is then
    narrowed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or " ".join((self.__doc__ or "").split()))


class ConfigError(GoferError):
    """What was configured cannot work."""

    code = "config"


class StoreError(GoferError):
    """The database did not do what was asked."""

    code = "store"


class StoreUnavailable(StoreError):
    """The database cannot be reached now. Nothing was changed; try again."""

    code = "store.unavailable"


class StoreBusy(StoreError):
    """Another Gofer process holds this database file."""

    code = "store.busy"

    def __init__(self, message: str | None = None, holder: str = "unknown") -> None:
        super().__init__(message)
        self.holder = holder
        """Its process id."""


class Refused(GoferError):
    """The request could not be verified."""

    code = "refused"


class Unset(Refused):
    """The secret that requests are verified with is not set, so none is taken."""

    code = "secret.unset"


class Forbidden(GoferError):
    """You may not do this."""

    code = "forbidden"


class TooOften(GoferError):
    """It was tried too often. Wait a while."""

    code = "too_often"

    def __init__(self, message: str | None = None, retry_after: float = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Stale(GoferError):
    """It has changed since you read it. Read it again, then change it."""

    code = "stale"


class Malformed(GoferError):
    """The request is verified but makes no sense."""

    code = "malformed"


class TooBusy(GoferError):
    """More work is waiting than can be kept safely. Try again in a moment."""

    code = "busy"

    def __init__(self, message: str | None = None, retry_after: float = 5) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class NotFound(GoferError):
    """There is no such thing."""

    code = "not_found"


class Conflict(GoferError):
    """It is not in a state that allows this."""

    code = "conflict"


class Fenced(GoferError):
    """This worker no longer owns the job; another one does."""

    code = "fenced"


class ServiceError(GoferError):
    """An outside service did not do what was asked."""

    code = "service"


class Temporary(ServiceError):
    """The service cannot do it now, but may later."""

    code = "service.temporary"

    def __init__(
        self,
        message: str | None = None,
        *,
        reason: str = "unavailable",
        retry_after: float | None = None,
        give_up_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after
        self.give_up_after = give_up_after
        """With `retry_after`: the age in seconds at which a reply is given up; None never gives up."""


class NotInstalled(Temporary):
    """The integration is not installed, or could not be loaded. What is for it waits until it is there again."""

    code = "integration.missing"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message, reason=self.code, retry_after=60)


class Permanent(ServiceError):
    """The service will never do this."""

    code = "service.permanent"

    def __init__(self, message: str | None = None, *, reason: str = "rejected") -> None:
        super().__init__(message)
        self.reason = reason


class Gone(Permanent):
    """What was to be changed has been deleted at the service."""

    code = "service.gone"

    def __init__(self, message: str | None = None, *, reason: str = "gone") -> None:
        super().__init__(message, reason=reason)
