"""The command `opo-fast theory`: parameters and bounds for given sizes, and the events of the proof."""

from __future__ import annotations

import difflib
import math
import os
import pathlib
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from typer.core import TyperGroup

from .. import envs
from .._support.checks import MANY, as_integer, having
from .._support.files import as_folder
from .._support.text import figure
from ..analysis.bounds import MOST_EPISODES, Bounds, bounds, informative_from, literature_rates, lower_bound
from ..analysis.event_study import event_study
from ..analysis.theory import parameters, regret_bound
from ..errors import OpoError
from ..model.layout import Layout
from .options import Env, Horizon, Settings, can_draw, cell, console, environment, safe, short, show_table
from .theory_scaling import show_scaling

__all__ = ["app"]


class _Theory(TyperGroup):
    """The group `theory`; without the name of a command it runs `parameters`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            if args and not args[0].startswith("-"):
                self._check_environment(args[0])
            args = ["parameters", *args]
        return super().parse_args(ctx, args)

    def _check_environment(self, word: str) -> None:
        """Refuse a word that is neither a command nor an environment; anything that may be a file or a function is checked later."""
        if word in envs.names() or any(sign in word for sign in "./:") or os.path.exists(word):
            return
        close = difflib.get_close_matches(word, [*self.commands, *envs.names()], 1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise OpoError(
            f"{word!r} is neither a command of theory nor an environment{hint}: {', '.join(self.commands)}, or a name from "
            "`opo-fast envs`, is needed"
        )


app = typer.Typer(
    cls=_Theory,
    help="The paper's theory: parameters and regret bound (`opo-fast theory [ENV]` is `theory parameters`), all bounds, the events.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

SizesFrom = Annotated[
    str | None, typer.Argument(metavar="[ENV]", help="Take all sizes except T from this environment.", show_default=False)
]
H = Annotated[int | None, typer.Option(help="H, number of layers. Default: 5, or the environment's own.")]
States = Annotated[int | None, typer.Option(help="|S|, number of states in all layers. Default: 20.")]
Actions = Annotated[int | None, typer.Option(help="|A|. Default: 4.")]
T = Annotated[int, typer.Option("--episodes", "-T", help="T.")]
Losses = Annotated[float | None, typer.Option(help="|F|, size of the loss class (of a cover, if it is not finite). Default: 10.")]
Dynamics = Annotated[float | None, typer.Option(help="|P|, size of the dynamics class. Default: 10.")]
Delta = Annotated[float, typer.Option(help="Failure probability of the theory's parameters, between 0 and 1.")]


@app.command("parameters")
def show_parameters(
    env: SizesFrom = None,
    horizon: H = None,
    states: States = None,
    actions: Actions = None,
    episodes: T = 1000,
    losses: Losses = None,
    dynamics: Dynamics = None,
    delta: Delta = 0.05,
    bonus_scale: Annotated[float, typer.Option(help="Factor on both betas.")] = 1.0,
    eta_scale: Annotated[float, typer.Option(help="Factor on eta.")] = 1.0,
    settings: Settings = None,
) -> None:
    """Show the parameters of Algorithm 1 and the regret bound of the main theorem for given sizes."""
    out = console()
    given = {"states": states, "actions": actions, "losses": losses, "dynamics": dynamics}
    layout, sizes = _layout_and_sizes(env, given, horizon, settings)
    sizes["delta"] = delta
    used = parameters(layout, episodes, **sizes, bonus_scale=bonus_scale, eta_scale=eta_scale)
    bound, trivial = regret_bound(layout, episodes, **sizes), layout.horizon * episodes
    out.print(_shape(layout, episodes, sizes))
    table = Table("", "", "", box=None, show_header=False, pad_edge=False)
    table.add_row("eta", f"{used.eta:.6g}", "learning rate")
    table.add_row("beta_loss", f"{used.beta_loss:.6g}", _leaves(used.beta_loss, episodes))
    table.add_row("beta_dynamics", f"{used.beta_dynamics:.6g}", _leaves(used.beta_dynamics, episodes))
    table.add_row("bound", f"{bound:.6g}", f"on the regret, with probability {1 - delta:g}, at scales of 1")
    table.add_row("H T", f"{trivial:.6g}", "what no policy can exceed")
    show_table(out, table)
    if max(used.beta_loss, used.beta_dynamics) / 2 >= episodes:
        out.print("A bonus stays at its cap throughout, so Q is 0 everywhere and the policy stays uniform: see --bonus-scale.")
    if bound >= trivial:
        start = informative_from(layout, **sizes, statement="regret")
        where = "It never falls below H T" if start >= NEVER else f"It falls below H T from about T = {start:.1e} on"
        out.print(f"The bound is vacuous: it exceeds H T. {where}.")
    else:
        out.print(f"The bound is {bound / trivial:.3g} times H T.")


NEVER = 0.99 * MOST_EPISODES
"""`informative_from` returns more than this if there is no such number of episodes."""
STATEMENTS = {
    "squared": "errors of the loss fits (corollary), 1 - delta/8",
    "hellinger": "errors of the dynamics fits (corollary), 1 - delta/8",
    "bonus_case_1": "bonuses under event A (case 1), 1 - delta/4",
    "bonus_case_2": "bonuses under not A and B (case 2), always",
    "bonus_case_3": "bonuses under not A and not B (case 3), always",
    "bonus_sum": "the three together, 1 - delta/4",
    "bonus_lemma": "lemma (bonus bound), 1 - delta/4",
    "fit_errors": "what the errors of the fits add to terms (i) and (iv), 1 - delta/4",
    "term_i": "lemma (term i), 1 - delta/4",
    "term_iii": "lemma (term iii), always",
    "term_iv": "lemma (term iv), 1 - delta/4",
    "expected": "expected regret: theorem, first line, 1 - 3 delta/4",
    "expected_from_lemmas": "expected regret: sum of the lemmas, 1 - 3 delta/4",
    "expected_balanced": "expected regret: theorem, balanced line, 1 - 3 delta/4",
    "azuma": "regret against expected regret (corollary), 1 - delta/4",
    "regret": "regret: theorem, balanced line, 1 - delta",
    "regret_tight": "regret: theorem, first line, 1 - delta",
    "regret_from_lemmas": "regret: sum of the lemmas, 1 - delta",
    "trivial": "H T, which no policy exceeds",
}
"""Description of each field of `Bounds`, and the probability with which it holds."""


@app.command("bounds")
def show_bounds(
    env: SizesFrom = None,
    horizon: H = None,
    states: States = None,
    actions: Actions = None,
    episodes: T = 1000,
    losses: Losses = None,
    dynamics: Dynamics = None,
    delta: Delta = 0.05,
    eta: Annotated[float | None, typer.Option(help="Learning rate. Default: the theorem's.")] = None,
    beta_loss: Annotated[float | None, typer.Option(help="Default: the theorem's.")] = None,
    beta_dynamics: Annotated[float | None, typer.Option(help="Default: the theorem's.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Threshold of event A. Default: gamma' / (432 H^4).")] = None,
    gamma_visits: Annotated[float | None, typer.Option(help="Threshold gamma' of event B. Default: half the least beta.")] = None,
    term_iii: Annotated[
        float | None, typer.Option(help="For self-tuning OPO: twice the mixability gaps of a run, instead of the bound on term (iii).")
    ] = None,
    p_min: Annotated[float | None, typer.Option(help="Minimum reachability, for the rate of RM-UCDD.")] = None,
    eluder: Annotated[float | None, typer.Option(help="Eluder dimension, for the rate of E-UC3RL.")] = None,
    settings: Settings = None,
) -> None:
    """Show every bound that the paper states, with its explicit constants, and compare it with H T, which no policy exceeds.

    **below H T from**: the number of episodes from which the bound, at the theorem's parameters, is not vacuous. The rates at the
    end have no constants; they are only for comparison with each other.
    """
    out = console()
    given = {"states": states, "actions": actions, "losses": losses, "dynamics": dynamics}
    layout, sizes = _layout_and_sizes(env, given, horizon, settings)
    by_hand: dict[str, Any] = {
        "eta": eta,
        "beta_loss": beta_loss,
        "beta_dynamics": beta_dynamics,
        "gamma": gamma,
        "gamma_visits": gamma_visits,
        "term_iii": term_iii,
    }
    found = bounds(layout, episodes, **sizes, delta=delta, **by_hand)
    rates = literature_rates(layout, episodes, **sizes, delta=delta, p_min=p_min, eluder=eluder)
    rates["lower bound"] = lower_bound(layout, episodes, **sizes)
    out.print(_shape(layout, episodes, {**sizes, "delta": delta}))
    table = Table("", "bound", "of H T", "below H T from", "", box=None, pad_edge=False)
    for name in Bounds._fields:
        value = getattr(found, name)
        start = ""
        if name != "trivial" and all(given is None for given in by_hand.values()):
            first = informative_from(layout, **sizes, delta=delta, statement=name)
            start = "never" if first >= NEVER else f"T = {first:.2g}"
        table.add_row(name, f"{value:.6g}", f"{value / found.trivial:.3g}", start, STATEMENTS[name])
    show_table(out, table)
    out.print("Rates of the paper's Table 1 and of the lower bound, without constants and logarithms of T:")
    lines = Table("", "", "", box=None, show_header=False, pad_edge=False)
    needs = {"rm-ucdd": "needs --p-min", "e-uc3rl": "needs --eluder"}
    for name, value in rates.items():
        note = needs.get(name, "") if math.isnan(value) else ""
        if name == "lower bound" and value == 0:
            note = f"vacuous: its construction needs a class of more than |S| = {layout.n_states:,} candidates"
        lines.add_row(name, figure(value, ".6g"), note)
    show_table(out, lines)


@app.command("events")
def show_events(
    env: Env,
    episodes: T = 100,
    seeds: Annotated[int, typer.Option(help="Number of seeds, from 0 on.")] = 20,
    horizon: Horizon = None,
    delta: Delta = 0.05,
    tuning: Annotated[
        Literal["theory", "auto"] | None, typer.Option(help="theory (the default), or auto for self-tuning OPO that is given T.")
    ] = None,
    eta: Annotated[float | None, typer.Option(help="By hand: learning rate.")] = None,
    beta_loss: Annotated[float | None, typer.Option(help="By hand: parameter of the losses' bonus.")] = None,
    beta_dynamics: Annotated[float | None, typer.Option(help="By hand: parameter of the dynamics' bonus.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Threshold of event A. Default: gamma' / (432 H^4).")] = None,
    gamma_visits: Annotated[float | None, typer.Option(help="Threshold gamma' of event B. Default: half the least beta.")] = None,
    settings: Settings = None,
    out: Annotated[pathlib.Path | None, typer.Option(help="Folder for events.npz and events.png. Default: runs/events-ENV.")] = None,
    plot: Annotated[bool, typer.Option("--plot/--no-plot", help="Draw the picture (needs matplotlib, extra 'plot').")] = True,
) -> None:
    """Let OPO learn with many seeds, and count how often the events of the proof and the statements of the paper held.

    **held**: in how many runs. **at least**: the paper's probability; 1 if the statement is deterministic. **interval**: 95 %
    Clopper-Pearson. **largest**: the largest left side in a run as a share of the right side; 1 means that the bound is tight.

    At the theory's constants and practical T, no pair is ever explored in the sense of event B; small betas by hand (try --eta 0.3
    --beta-loss 4 --beta-dynamics 4) show the other cases.
    """
    stream = console()
    cmdp = environment(env, horizon, settings)
    by_hand = {"tuning": tuning, "eta": eta, "beta_loss": beta_loss, "beta_dynamics": beta_dynamics}
    options: dict[str, Any] = {name: value for name, value in by_hand.items() if value is not None}
    found = event_study(cmdp, episodes, seeds, delta=delta, gamma=gamma, gamma_visits=gamma_visits, **options)
    table = Table("", "held", "at least", "interval", "largest", "", box=None, pad_edge=False)
    table.title, table.title_justify = (
        f"{safe(env)}: T = {episodes:,}, gamma = {found.gamma:.3g}, gamma' = {found.gamma_visits:.3g}",
        "left",
    )
    for name, one in found.frequencies.items():
        verdict = "" if one.consistent else "  VIOLATED"
        interval = f"[{one.low:.3f}, {one.high:.3f}]"
        table.add_row(
            name, f"{one.held}/{one.runs}", f"{one.probability:.4g}", interval, figure(one.share, ".2g"), cell(one.source + verdict)
        )
    show_table(stream, table)
    for name, label in (("inaccurate", "event A"), ("under_explored", "event B, share of the pairs")):
        column = found.columns[name]
        stream.print(f"{label}: {column.mean():.3f} over all episodes, {column[:, -1].mean():.3f} in the last one")
    folder = as_folder(out or pathlib.Path("runs") / f"events-{short(env)}", "--out")
    found.save(folder / "events.npz")
    if plot and can_draw():
        found.plot(folder / "events.png")
    stream.print(f"[dim]{safe(folder)}[/dim]")


app.command("scaling")(show_scaling)


def _shape(layout: Layout, episodes: int, sizes: dict[str, float]) -> str:
    shape = f"H = {layout.horizon}, |S| = {layout.n_states:,}, |A| = {layout.n_actions}, T = {episodes:,}"
    return f"{shape}, |F| = {sizes['loss_class_size']:g}, |P| = {sizes['dynamics_class_size']:g}, delta = {sizes['delta']:g}"


def _layout_and_sizes(
    env: str | None, given: dict[str, Any], horizon: int | None, settings: list[str] | None
) -> tuple[Layout, dict[str, float]]:
    """Sizes from the command line or from an environment."""
    if env is None and settings:
        raise OpoError(f"--set is {settings[0]!r}, which is an option of an environment: name one, or leave it out")
    return _sizes(given, horizon) if env is None else _sizes_of(env, given, horizon, settings)


def _sizes(given: dict[str, Any], horizon: int | None) -> tuple[Layout, dict[str, float]]:
    """Sizes from the command line."""
    defaults = {"states": 20, "actions": 4, "losses": 10.0, "dynamics": 10.0}
    size = {name: defaults[name] if value is None else value for name, value in given.items()}
    layout = _layers(
        as_integer(5 if horizon is None else horizon, "horizon", least=1, most=MANY), int(size["states"]), int(size["actions"])
    )
    return layout, {"loss_class_size": size["losses"], "dynamics_class_size": size["dynamics"]}


def _sizes_of(env: str, given: dict[str, Any], horizon: int | None, settings: list[str] | None) -> tuple[Layout, dict[str, float]]:
    """Sizes of an environment."""
    twice = [f"--{name}" for name, value in given.items() if value is not None]
    if twice:
        raise OpoError(f"{twice[0]} is given, but the environment {env!r} has its own: leave one of the two out")
    cmdp = environment(env, horizon, settings)
    having(cmdp, env, ("loss_class", "dynamics_class"), "an environment with classes of losses and dynamics")
    return cmdp.layout, {"loss_class_size": cmdp.loss_class.size, "dynamics_class_size": cmdp.dynamics_class.size}


def _leaves(beta: float, episodes: int) -> str:
    """When the bonus min{1, (beta/2) / (1+N)} leaves its cap."""
    if beta <= 2:
        return "its bonus is never at its cap"
    within = "never within T episodes" if beta / 2 >= episodes else "at the earliest after as many episodes"
    return f"its bonus leaves its cap at {beta / 2 - 1:,.4g} visits: {within}"


def _layers(horizon: int, states: int, actions: int) -> Layout:
    """A layout with these sizes; the theory depends only on them."""
    as_integer(states, "states", least=horizon, most=1 if horizon == 1 else None)
    share, more = divmod(states - 1, max(1, horizon - 1))
    return Layout([1, *(share + (h < more) for h in range(horizon - 1))], actions)
