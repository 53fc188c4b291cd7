"""Calls to AWS by boto3: bounded in time, made at one door, and their errors told in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import UserError
from ..report.text import one_line
from .model import MachineError

CONNECT_SECONDS = 10
READ_SECONDS = 60
TRIES = 4

TRANSIENT = frozenset(
    (
        "", "RequestLimitExceeded", "Throttling", "ThrottlingException", "InternalError", "InternalFailure",
        "ServiceUnavailable", "Unavailable", "RequestTimeout",
    )
)  # fmt: skip
"""The codes of what may go well a moment later; no code at all means that no answer came."""
DENIED = frozenset(("UnauthorizedOperation", "AccessDenied", "AccessDeniedException"))
_EXPIRED = frozenset(("ExpiredToken", "ExpiredTokenException", "RequestExpired"))
_UNKNOWN = frozenset(
    (
        "AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException", "SignatureDoesNotMatch",
        "InvalidSignatureException",
    )
)  # fmt: skip
_GET_THEM = "get them in the starting job, by aws-actions/configure-aws-credentials"


class AwsError(MachineError):
    """AWS refused a call, or could not be asked. `code` is AWS's own, empty where no answer came.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code

    @property
    def transient(self) -> bool:
        """Whether the same call may go well a moment later."""
        return self.code in TRANSIENT


class Aws:
    """AWS with boto3's own chain of credentials, and one client a service and region.

    Every call may raise AwsError, and UserError where boto3 or the credentials are missing.
    """

    def __init__(self) -> None:
        self._session: Any = None
        self._clients: dict[tuple[str, str, int], Any] = {}

    def call(self, region: str, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call, named as in AWS's reference; what is transient is tried again."""
        return self._call(region, service, operation, TRIES, parameters)

    def once(self, region: str, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """Make a call one time.

        EC2 answers a lack of capacity with status 500, which botocore would try again for long:
        https://github.com/aws/aws-sdk-ruby/issues/2786
        """
        return self._call(region, service, operation, 1, parameters)

    def pages(self, region: str, service: str, operation: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """All pages of a listing."""
        with _told(f"{operation} in {region}"):
            client = self._client(service, region, TRIES)
            yield from client.get_paginator(_method(operation)).paginate(**parameters)

    def _call(
        self, region: str, service: str, operation: str, tries: int, parameters: dict[str, Any]
    ) -> dict[str, Any]:
        with _told(f"{operation} in {region}"):
            answer: dict[str, Any] = getattr(self._client(service, region, tries), _method(operation))(**parameters)
            return answer

    def _client(self, service: str, region: str, tries: int) -> Any:
        key = service, region, tries
        if key not in self._clients:
            import boto3
            from botocore.config import Config

            bounds = Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                retries={"total_max_attempts": tries, "mode": "standard"},
            )
            self._session = self._session or boto3.session.Session()
            self._clients[key] = self._session.client(service, region_name=region, config=bounds)
        return self._clients[key]


def _method(operation: str) -> str:
    from botocore import xform_name

    return str(xform_name(operation))


@contextmanager
def _told(call: str) -> Iterator[None]:
    try:
        from botocore import exceptions as failures
        from botocore.parsers import ResponseParserError
    except ImportError:
        raise UserError("the provider ec2 needs boto3: pip install 'symmem-check[ec2]'") from None
    try:
        yield
    except (failures.NoCredentialsError, failures.PartialCredentialsError):
        raise UserError(f"there are no AWS credentials here; {_GET_THEM}") from None
    except failures.ClientError as error:
        raise _refused(call, error.response.get("Error", {})) from None
    except (failures.BotoCoreError, ResponseParserError) as error:
        raise AwsError(f"{call}: {one_line(str(error), 300)}") from None


def _refused(call: str, answer: dict[str, Any]) -> AwsError:
    code = one_line(str(answer.get("Code", "")), 100) or "refused"
    # EC2 adds a page of what only an administrator can decode.
    message, _, _ = str(answer.get("Message", "")).partition("Encoded authorization failure message")
    said = f"{call}: {code}: {one_line(message, 300)}"
    if code in _EXPIRED:
        return AwsError(f"the AWS credentials have expired ({said}); {_GET_THEM}", code)
    if code in _UNKNOWN:
        return AwsError(
            f"AWS does not take the credentials: they are wrong, or the account has that region disabled ({said})", code
        )
    if code in DENIED:
        return AwsError(f"{said}; the role needs what docs/machines/ec2.md lists", code)
    return AwsError(said, code)
