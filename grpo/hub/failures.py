"""What went wrong between here and the hub, and what the user can do about it."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import get_token
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from grpo.errors import GrpoError
from grpo.hub.plan import Item

# The transport's own base of errors: httpx, or httpx2 in later versions of huggingface_hub.
_TransportError: type[BaseException] = HfHubHTTPError.__bases__[0]


class FetchError(GrpoError):
    """Something of the hub that cannot be stored."""


@contextmanager
def explained(item: Item, page: str) -> Iterator[None]:
    """Turn errors of huggingface_hub into FetchError, without their own texts: those hold URLs that may be signed."""
    try:
        yield
    except (HfHubHTTPError, LocalEntryNotFoundError, HFValidationError, ConnectionError, TimeoutError) as error:
        raise FetchError(f"{item.key}={item.name}: {_explanation(error, item, page)}") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            raise  # the disk's fault: the caller knows the folder
        raise FetchError(f"{item.key}={item.name}: {_explanation(error, item, page)}") from None
    except _TransportError as error:
        raise FetchError(f"{item.key}={item.name}: {_explanation(error, item, page)}") from None


def _explanation(error: BaseException, item: Item, page: str) -> str:  # noqa: PLR0911 - one return a cause
    if isinstance(error, LocalEntryNotFoundError) and error.__cause__ is not None:
        return _explanation(error.__cause__, item, page)
    if isinstance(error, GatedRepoError):
        return _gated(page)
    if isinstance(error, RevisionNotFoundError):
        return f"there is no revision {item.revision or 'main'!r} at {page}"
    if isinstance(error, RepositoryNotFoundError):
        return f"there is no such repository at {page}, or it is private{_and_no_token()}"
    if isinstance(error, HFValidationError):
        return "this is no name of the hub, which are like 'organisation/name'"
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if status == 401:
            return f"the hub refuses the token ({status}); log in again with: hf auth login"
        return f"the hub answered {status} for {page}; run the command again later: it continues where it stopped"
    return (
        f"the hub cannot be reached ({type(error).__name__}, {page}); run this on a machine with network (a login "
        "node), and set HTTPS_PROXY or HF_ENDPOINT if yours needs one; running it again continues where it stopped"
    )


def _gated(page: str) -> str:
    if get_token() is None:
        return f"access is granted by its owner: ask for it at {page}, then log in: hf auth login (or HF_TOKEN)"
    return f"your account has no access: ask for it at {page} (and the token must allow gated repositories)"


def _and_no_token() -> str:
    return "" if get_token() else " (no token is set; for a private one log in with: hf auth login)"
