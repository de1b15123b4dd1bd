"""How each check of a run ended, as cells: none may vanish."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from commhooks.conformance.cells import Cell, Failure, ImplementationResult, State, Traffic
from commhooks.conformance.deviations import Deviation


class Account:
    """The cells of one implementation, judged against its recorded deviations.

    Args:
        result: Where the cells are kept.
        deviations: The recorded deviations that apply to this version of the implementation.
    """

    def __init__(self, result: ImplementationResult, deviations: Sequence[Deviation]) -> None:
        self.result = result
        self._deviations = list(deviations)

    def passed(
        self,
        clauses: Sequence[str],
        check: str,
        configuration: Mapping[str, str],
        seconds: float,
        note: str = "",
        traffic: Traffic | None = None,
    ) -> State:
        """Enters a check that passed, with what it noted; where a deviation is recorded, that is a failure."""
        worst: State = "pass"
        for clause in clauses:
            deviation = self._recorded(clause, configuration)
            if deviation is None:
                self._enter(clause, check, configuration, "pass", note, seconds=seconds, traffic=traffic)
                continue
            failure = Failure(
                kind="stale record",
                message=f"{clause} holds here, but a deviation is recorded: {deviation.reason}",
                expected=f"a failure of the kind {' or '.join(map(repr, deviation.how))}",
                found="the check passes",
            )
            self._enter(clause, check, configuration, "fail", failure=failure, seconds=seconds)
            worst = "fail"
        return worst

    def failed(
        self, clauses: Sequence[str], check: str, configuration: Mapping[str, str], failure: Failure, seconds: float
    ) -> State:
        """Enters a check that failed: as a deviation if it is recorded in this way, as a failure otherwise."""
        worst: State = "deviation"
        for clause in clauses:
            deviation = self._recorded(clause, configuration)
            if deviation is not None and failure.kind in deviation.how:
                self._enter(clause, check, configuration, "deviation", deviation.reason, failure, seconds)
                continue
            if deviation is not None:
                recorded = " or ".join(map(repr, deviation.how))
                failure = replace(
                    failure, message=f"{failure.message}\nThe deviation recorded here is of the kind {recorded}."
                )
            self._enter(clause, check, configuration, "fail", failure=failure, seconds=seconds)
            worst = "fail"
        return worst

    def left_out(
        self, clauses: Sequence[str], check: str, configuration: Mapping[str, str], state: State, reason: str
    ) -> State:
        """Enters a check that was not run, or that needs what the implementation does not offer."""
        for clause in clauses:
            self._enter(clause, check, configuration, state, reason)
        return state

    def close(self, complete: bool, clauses: Collection[str]) -> None:
        """Looks for records that matched nothing.

        Args:
            complete: Whether every check was run on every usual world size; only then can a record be called stale.
            clauses: Ids of the clauses that were checked. Records of others say nothing about themselves, and neither
                do those of another device or backend.
        """
        if not complete:
            return
        places = {"device": {self.result.device}, "backend": {self.result.backend, "lab"}}
        seen = {self._recorded(cell.clause, cell.configuration) for cell in self.result.cells}
        for deviation in self._deviations:
            concerned = all(places[key] & set(values) for key, values in deviation.where.items() if key in places)
            if deviation not in seen and concerned and deviation.clause in clauses:
                where = ", ".join(f"{key} {' or '.join(values)}" for key, values in deviation.where.items())
                self.result.stale.append(
                    f"the deviation recorded for {deviation.clause}{f' ({where})' if where else ''} matches no cell"
                )

    def _recorded(self, clause: str, configuration: Mapping[str, str]) -> Deviation | None:
        return next((entry for entry in self._deviations if entry.matches(clause, configuration)), None)

    def _enter(
        self,
        clause: str,
        check: str,
        configuration: Mapping[str, str],
        state: State,
        reason: str = "",
        failure: Failure | None = None,
        seconds: float = 0.0,
        traffic: Traffic | None = None,
    ) -> None:
        self.result.cells.append(Cell(clause, check, dict(configuration), state, reason, failure, seconds, traffic))
