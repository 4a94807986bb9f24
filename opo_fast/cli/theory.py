"""The command `opo-fast theory`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from .. import envs
from .._support.checks import MANY, whole
from ..analysis.theory import parameters, regret_bound
from ..errors import OpoError
from ..model.layout import Layout
from .options import Settings, command, console, environment_options, show_table

__all__ = ["app"]

app = command()


@app.command()
def theory(
    env: Annotated[
        str | None, typer.Argument(metavar="[ENV]", help="Take all sizes but T from this environment.", show_default=False)
    ] = None,
    horizon: Annotated[int | None, typer.Option(help="H, number of layers. Default: 5, or the environment's own.")] = None,
    states: Annotated[int | None, typer.Option(help="|S|, number of states of all layers. Default: 20.")] = None,
    actions: Annotated[int | None, typer.Option(help="|A|. Default: 4.")] = None,
    episodes: Annotated[int, typer.Option("--episodes", "-T", help="T.")] = 1000,
    losses: Annotated[
        float | None, typer.Option(help="|F|, size of the loss class (of a cover, if it is not finite). Default: 10.")
    ] = None,
    dynamics: Annotated[float | None, typer.Option(help="|P|, size of the dynamics class. Default: 10.")] = None,
    delta: Annotated[float, typer.Option(help="Failure probability of the theory's parameters, between 0 and 1.")] = 0.05,
    bonus_scale: Annotated[float, typer.Option(help="Factor on both betas.")] = 1.0,
    eta_scale: Annotated[float, typer.Option(help="Factor on eta.")] = 1.0,
    settings: Settings = None,
) -> None:
    """Show the parameters of Algorithm 1 and the regret bound of the main theorem for given sizes."""
    out = console()
    given = {"states": states, "actions": actions, "losses": losses, "dynamics": dynamics}
    layout, sizes = _sizes(given, horizon) if env is None else _sizes_of(env, given, horizon, settings)
    if env is None and settings:
        raise OpoError(f"--set is {settings[0]!r}, which is an option of an environment: name one, or leave it out")
    sizes["delta"] = delta
    used = parameters(layout, episodes, **sizes, bonus_scale=bonus_scale, eta_scale=eta_scale)
    bound, trivial = regret_bound(layout, episodes, **sizes), layout.horizon * episodes
    shape = f"H = {layout.horizon}, |S| = {layout.n_states:,}, |A| = {layout.n_actions}, T = {episodes:,}"
    out.print(f"{shape}, |F| = {sizes['loss_class_size']:g}, |P| = {sizes['dynamics_class_size']:g}, delta = {delta:g}")
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
        start = _telling(layout, sizes)
        out.print(f"The bound is vacuous: it exceeds H T. It falls below H T from about T = {start:.1e} on.")
    else:
        out.print(f"The bound is {bound / trivial:.3g} times H T.")


def _sizes(given: dict[str, Any], horizon: int | None) -> tuple[Layout, dict[str, float]]:
    """Sizes from the command line."""
    defaults = {"states": 20, "actions": 4, "losses": 10.0, "dynamics": 10.0}
    size = {name: defaults[name] if value is None else value for name, value in given.items()}
    layout = _layers(whole(5 if horizon is None else horizon, "horizon", least=1, most=MANY), int(size["states"]), int(size["actions"]))
    return layout, {"loss_class_size": size["losses"], "dynamics_class_size": size["dynamics"]}


def _sizes_of(env: str, given: dict[str, Any], horizon: int | None, settings: list[str] | None) -> tuple[Layout, dict[str, float]]:
    """Sizes of an environment."""
    twice = [f"--{name}" for name, value in given.items() if value is not None]
    if twice:
        raise OpoError(f"{twice[0]} is given beside the environment {env!r}, which has its own: one of the two is needed")
    cmdp = envs.make(env, **environment_options(horizon, settings))
    return cmdp.layout, {"loss_class_size": cmdp.loss_class.size, "dynamics_class_size": cmdp.dynamics_class.size}


def _leaves(beta: float, episodes: int) -> str:
    """When the bonus min{1, (beta/2) / (1+N)} leaves its cap."""
    if beta <= 2:
        return "its bonus is never at its cap"
    within = "never within T episodes" if beta / 2 >= episodes else "at the earliest after as many episodes"
    return f"its bonus leaves its cap at {beta / 2 - 1:,.4g} visits: {within}"


def _telling(layout: Layout, sizes: dict[str, float]) -> float:
    """The T from which the bound is below H T, by doubling and halving on a logarithmic scale."""
    low, high = 0.0, 200.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        episodes = int(2.0**middle)
        low, high = (low, middle) if regret_bound(layout, episodes, **sizes) < layout.horizon * episodes else (middle, high)
    return float(2.0**high)


def _layers(horizon: int, states: int, actions: int) -> Layout:
    """A layout of these sizes; the theory asks for nothing else of it."""
    whole(states, "states", least=horizon, most=1 if horizon == 1 else None)
    share, more = divmod(states - 1, max(1, horizon - 1))
    return Layout([1, *(share + (h < more) for h in range(horizon - 1))], actions)
