"""Laws of accounts: both forms hold the same account, and any bytes are read or refused."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from cardinal.errors import ApplicationError
from cardinal_ethereum import Account
from cardinal_ethereum.checks.trie import EMPTY_ROOT
from cardinal_ethereum.model.account import NO_CODE

HASHES = st.binary(min_size=32, max_size=32)
ACCOUNTS = st.builds(
    Account,
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**256 - 1),
    st.one_of(st.just(EMPTY_ROOT), HASHES),
    st.one_of(st.just(NO_CODE), HASHES),
)


@given(ACCOUNTS)
def test_both_forms_are_read_as_the_same_account(account: Account) -> None:
    assert Account.decode(account.leaf()) == Account.decode(account.slim()) == account
    saved = 32 * ((account.storage_root == EMPTY_ROOT) + (account.code_hash == NO_CODE))
    assert saved <= len(account.leaf()) - len(account.slim()) <= saved + 2  # the list's own size takes up to two


@given(st.one_of(st.binary(max_size=120), ACCOUNTS.map(Account.leaf), ACCOUNTS.map(Account.slim)), st.data())
def test_damaged_accounts_are_refused_or_read_as_what_they_say(value: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(value)))
    damaged = value[:at] + data.draw(st.binary(max_size=2)) + value[at + 1 :]
    with contextlib.suppress(ApplicationError):
        account = Account.decode(damaged)
        assert Account.decode(account.slim()) == account
