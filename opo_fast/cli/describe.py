"""The command `opo-fast describe`."""

from __future__ import annotations

import math

from .. import envs
from .._support.text import count, figure
from ..errors import OpoError
from .options import SHOWN, Env, Horizon, Settings, cell, command, console, environment, of_the_user, safe, show_table
from .run import number, values_table

__all__ = ["app"]

NEEDED = ("contexts", "mdp", "label", "reward_value", "loss_class", "dynamics_class")
app = command()


@app.command()
def describe(env: Env = "icu-sepsis", horizon: Horizon = None, settings: Settings = None) -> None:
    """Describe an environment: layers, contexts and their values, model classes."""
    out = console()
    cmdp = environment(env, horizon, settings)
    missing = [name for name in NEEDED if not hasattr(cmdp, name)]
    if missing:
        raise OpoError(
            f"{env} returns a {type(cmdp).__name__} without {', '.join(missing)}: describe needs an opo_fast.envs.Environment, which "
            "lists or draws its contexts and has model classes; run, compare and study need only layout, sample_context, mdp and "
            "whatever the agent needs"
        )
    facts = envs.describe(cmdp, SHOWN)
    out.print(f"[bold]{safe(env)}[/bold]: {safe(cmdp.source if of_the_user(env) else envs.about(env))}", soft_wrap=True)
    pairs = f"{facts['allowed_pairs']:,} allowed state-action pairs"
    out.print(f"{cmdp.layout.horizon} layers, {facts['n_states']:,} states, {facts['n_actions']} actions, {pairs}")
    out.print(f"Transitions ({facts['storage']}): {facts['transitions']:,}; {facts['bytes'] / 1e6:.2f} MB stored")
    columns = ["context", "prob.", "uniform", "optimum", "gap"] + (["reward of\nuniform", "reward of\noptimum"] if cmdp.reward_map else [])
    table = values_table("Values V(s_1): expected sum of losses", columns)
    for row in facts["contexts"]:
        numbers = [row["uniform"], row["optimum"], row["uniform"] - row["optimum"]]
        numbers += [row["reward_uniform"], row["reward_optimum"]] if cmdp.reward_map else []
        chance = figure(math.nan if row["probability"] is None else row["probability"], ".3f")
        table.add_row(cell(row["label"]), chance, *map(number, numbers))
    show_table(out, table)
    if facts["n_contexts"] is None:
        out.print("The contexts are endless; these are examples.")
    elif facts["n_contexts"] > SHOWN:
        out.print(f"These are the first {SHOWN} of {facts['n_contexts']:,} contexts.")
    for kind in ("loss", "dynamics"):
        names = facts[f"{kind}_class"]
        listed = ", ".join(safe(name) for name in names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
        out.print(f"{kind.capitalize()} class of {count(len(names), 'candidate')}: {listed}")
