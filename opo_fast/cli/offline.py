"""The command `opo-fast offline`."""

from __future__ import annotations

import csv
import io
import pathlib
import warnings
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from .. import envs
from .._support.checks import as_integer
from .._support.files import writing
from .._support.text import printable
from .._support.threads import set_threads
from ..envs.icu_sepsis import load_icu_data
from ..errors import OpoError
from ..model.contextual import context_key
from ..model.operations import evaluate, solve
from ..offline import LearnedPolicy, OffPolicyWarning, PolicyEvaluation, evaluate_policy, fit_report, learn_from_logs
from ..oracles import TabularDynamicsClass, TabularLossClass, TrajectoryLog
from .options import Horizon, Settings, Threads, cell, command, console, environment_options, safe, show_table

__all__ = ["app"]

app = command()
Array = Any
_FILES = (".csv", ".npz", ".parquet")


@app.command()
def offline(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A log (.csv, .parquet, .npz), or an environment, from which a log is made.")
    ],
    visits: Annotated[int, typer.Option(help="Number of episodes to log, for an environment.")] = 10_000,
    method: Annotated[
        Literal["plan", "pessimistic"], typer.Option(help="The optimum of the fitted model, or under the worst plausible model.")
    ] = "plan",
    seed: Annotated[int, typer.Option(help="Seed of the log and of the resamples.")] = 0,
    context: Annotated[str, typer.Option(help="Context columns of a table, separated by commas; '' for none.")] = "context",
    reward: Annotated[str | None, typer.Option(metavar="COLUMN:LOW:HIGH", help="A column of rewards, and their range.")] = None,
    propensity: Annotated[str | None, typer.Option(metavar="COLUMN", help="The probabilities of the logged actions.")] = None,
    next_state: Annotated[str | None, typer.Option(metavar="COLUMN", help="The next states.")] = None,
    absorbing: Annotated[str | None, typer.Option(help="States that end an episode, separated by commas.")] = None,
    horizon: Horizon = None,
    settings: Settings = None,
    threads: Threads = None,
    out: Annotated[pathlib.Path | None, typer.Option(help="Write the policy to this CSV file.")] = None,
    save_log: Annotated[pathlib.Path | None, typer.Option(help="Write the log to this .csv, .npz or .parquet file.")] = None,
) -> None:
    """Learn a policy from logged episodes only, and estimate what it costs.

    A table has one row per step, with the columns episode, step, state, action, loss and context. The policy is learned with tables of
    means and frequencies, and only logged actions are allowed. An environment is logged under its behavior policy (ICU-Sepsis: the
    clinicians' policy, restricted to allowed doses; others: the uniform policy) and then learned with its own function classes, without
    its true model; the exact value of the learned policy is shown last. One half of the episodes is for learning, the other for evaluation.
    """
    set_threads(None if threads is None else as_integer(threads, "threads", least=1))
    screen = console()
    env: Any = None
    losses: Any
    dynamics: Any
    if source.endswith(_FILES):
        log = _read(source, context, reward, propensity, next_state, absorbing)
        losses, dynamics = TabularLossClass(per_context=True, unseen=1.0), TabularDynamicsClass(per_context=True)
    else:
        env = envs.make(source, **environment_options(horizon, settings))
        losses, dynamics = env.loss_class, env.dynamics_class
        log = TrajectoryLog.collect(env, visits, seed, _Once(_behavior(env)))
    shape = f"{log.layout.horizon} layers, {log.layout.n_states:,} states, {log.layout.n_actions} actions"
    screen.print(f"{safe(source)}: {len(log):,} episodes, {shape}")
    if save_log is not None:
        (log.to_csv if save_log.suffix == ".csv" else log.save)(save_log)
    half = len(log) // 2
    if not half:
        raise OpoError("the log has 1 episode: at least 2 are needed, one half for learning and the other for evaluation")
    shuffled = np.random.default_rng(as_integer(seed, "seed", least=0, most=None)).permutation(len(log))
    learning, judging = log.take(shuffled[:half]), log.take(shuffled[half:])
    for line in fit_report(learning, losses, dynamics, folds=2, seed=seed):
        screen.print(f"Fit of the {line.kind} class, {line}")
    mask = log.action_mask if env is not None else learning.logged
    learned = learn_from_logs(log.layout, losses, dynamics, learning, method, action_mask=mask)
    model: dict[str, Any] = {} if env is None else {"loss_class": losses, "dynamics_class": dynamics}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OffPolicyWarning)  # the notes are printed
        found = evaluate_policy(judging, learned, folds=2, seed=seed, **model)
    _show_estimates(screen, found)
    if env is not None:
        _show_exact(screen, env, learned)
    if out is not None:
        _write_policy(out, log, learned)
        typer.echo(f"Written to {printable(out)}")


class _Once:
    """A policy that is computed once for each context."""

    def __init__(self, policy: Any) -> None:
        self._policy = policy
        self._known: dict[Any, Array] = {}

    def __call__(self, context: Any) -> Array:
        key = context_key(context)
        if key not in self._known:
            self._known[key] = self._policy(context)
        return self._known[key]


def _behavior(env: Any) -> Any:
    """The policy under which an environment is logged."""
    if env.name != "icu-sepsis":
        return lambda context: env.mdp(context).uniform_policy()
    data = load_icu_data()
    kept = np.where(data.admissible, data.expert_policy, 0.0)
    # In conditions in which clinicians gave only doses that are not allowed, all allowed doses are equally likely.
    kept = np.where(kept.sum(axis=1, keepdims=True) > 0, kept, data.admissible)
    kept = kept / kept.sum(axis=1, keepdims=True)
    return lambda context: env.mdp(context).unroll(kept)


def _read(
    path: str, context: str, reward: str | None, propensity: str | None, next_state: str | None, absorbing: str | None
) -> TrajectoryLog:
    if path.endswith(".npz"):
        return TrajectoryLog.load(path)
    columns = [name.strip() for name in context.split(",") if name.strip()]
    options: dict[str, Any] = {"context": None if not columns else columns[0] if len(columns) == 1 else columns}
    if reward is not None:
        name, *ends = reward.rsplit(":", 2)
        try:
            options.update(reward=name, reward_range=tuple(map(float, ends)))
        except ValueError:
            ends = []
        if len(ends) != 2:
            raise OpoError(f"--reward is {reward!r}: COLUMN:LOW:HIGH is needed, as in outcome:0:1")
    if absorbing is not None:
        options["absorbing"] = [_label(text.strip()) for text in absorbing.split(",")]
    read = TrajectoryLog.from_csv if path.endswith(".csv") else TrajectoryLog.from_parquet
    return read(path, propensity=propensity, next_state=next_state, **options)


def _label(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text


def _show_estimates(screen: Console, found: PolicyEvaluation) -> None:
    table = Table(title=f"Cost of the policy, from the {found.episodes:,} episodes that were not used for learning", title_justify="left")
    for column in ("estimator", "value", f"{found.level:.0%} interval", "standard error"):
        table.add_column(column, justify="left" if column == "estimator" else "right")
    for name, estimate in found.estimates.items():
        numbers = [f"{estimate.value:.4f}", f"{estimate.low:.4f} to {estimate.high:.4f}", f"{estimate.standard_error:.4f}"]
        table.add_row(name, *(numbers if estimate.value == estimate.value else ["not supported", "", ""]))
    table.add_row("the logged policy", f"{found.logged_value:.4f}", "", "")
    show_table(screen, table)
    for note in found.notes:
        screen.print(f"Note: {note}")


def _show_exact(screen: Console, env: Any, learned: LearnedPolicy) -> None:
    """Print exact values on the true model, which was not used for learning."""
    if env.contexts is None:
        screen.print("The contexts are endless: no exact value")
        return
    table = Table(title="Exact values on the true model (sum of losses; lower is better)", title_justify="left")
    for column in ("context", "learned", "logged policy", "optimum", "the method's own estimate"):
        table.add_column(column, justify="left" if column == "context" else "right")
    behavior, rows = _behavior(env), []
    for context in env.contexts:
        mdp = env.mdp(context)
        policies = learned.policy(context), behavior(context)
        rows.append([*(float(evaluate(mdp, policy).v[0]) for policy in policies), float(solve(mdp).v[0]), learned.value(context)])
    for context, row in zip(env.contexts, rows, strict=True):
        table.add_row(cell(env.label(context)), *(f"{value:.4f}" for value in row))
    total = env.probabilities @ np.array(rows)
    table.add_section()
    table.add_row("all", *(f"{value:.4f}" for value in total), style="bold")
    show_table(screen, table)
    screen.print(f"The learned policy's exact value is {total[0]:.4f} (logged policy {total[1]:.4f}, optimum {total[2]:.4f})")
    if env.reward_map is not None:
        values = [float(env.reward_value(value)) for value in total[:3]]
        screen.print("In the environment's own reward: learned {:.4f}, logged policy {:.4f}, optimum {:.4f}".format(*values))


def _write_policy(path: pathlib.Path, log: TrajectoryLog, learned: LearnedPolicy) -> None:
    """One row for each context, logged state and action that is played."""
    layout, reached = log.layout, log.visits.sum(axis=1) > 0
    labels = list(range(layout.n_states)) if log.state_labels is None else [label for layer in log.state_labels for label in layer]
    actions = list(range(layout.n_actions)) if log.action_labels is None else log.action_labels
    known = {str(context): context for context in log.contexts}
    with writing(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["context", "step", "state", "action", "probability"])
        for name, context in known.items():
            policy = learned.policy(context)
            for state, action in np.argwhere((policy > 0) & reached[:, None]).tolist():
                writer.writerow([name, layout.layer_of(state), labels[state], actions[action], repr(float(policy[state, action]))])
        text.detach()
