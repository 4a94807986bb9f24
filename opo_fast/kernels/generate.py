"""Transitions of large generated models, written directly into CSR arrays with one row per state-action pair."""

from __future__ import annotations

from ._jit import kernel

__all__ = ["inventory_counts", "inventory_rows", "queue_counts", "queue_rows"]


@kernel
def inventory_counts(levels, orders, most, states, counts):
    """Number of next states of each state-action pair: the product over items of min(stock after the order, `most`) + 1.

    `levels` (items,) are the numbers of stock levels, `orders` (A, items) is what each action adds, up to the full stock, and `most`
    is the largest demand. `counts` gets one entry for each pair of `states` and actions.
    """
    n_items, n_actions = levels.size, orders.shape[0]
    for i in range(states.size):
        for a in range(n_actions):
            rest, total = states[i], 1
            for item in range(n_items - 1, -1, -1):
                stock = min(rest % levels[item] + orders[a, item], levels[item] - 1)
                rest //= levels[item]
                total *= min(stock, most) + 1
            counts[i * n_actions + a] = total


@kernel
def inventory_rows(levels, orders, most, demand, excess, states, indptr, data, indices):
    """Fill the rows: stock falls by independent demands, `demand` (items, most + 1); `excess[item, d]` = P(demand >= d)."""
    n_items, n_actions = levels.size, orders.shape[0]
    for i in range(states.size):
        for a in range(n_actions):
            row = i * n_actions + a
            begin, end = indptr[row], indptr[row + 1]
            data[begin] = 1.0
            indices[begin] = 0
            length = 1
            for item in range(n_items):
                rest = states[i]
                for later in range(n_items - 1, item, -1):
                    rest //= levels[later]
                stock = min(rest % levels[item] + orders[a, item], levels[item] - 1)
                low = max(stock - most, 0)
                width = stock - low + 1
                # Backwards, so that the entries of the shorter list are read before they are overwritten.
                for k in range(length - 1, -1, -1):
                    p, base = data[begin + k], indices[begin + k]
                    for j in range(width - 1, -1, -1):
                        level = low + j
                        chance = excess[item, stock] if level == 0 and stock <= most else demand[item, stock - level]
                        data[begin + k * width + j] = p * chance
                        indices[begin + k * width + j] = base * levels[item] + level
                length *= width
            if begin + length != end:
                return row
    return -1


@kernel
def _queue_row(levels, n_actions, arrival, service, state, action, targets, chances):
    """Next states of one state-action pair, sorted and merged: arrivals at the queues, one queue served, its job moves on."""
    n = levels.size
    count = 0
    for served in range(2):
        for subset in range(1 << n):
            p = service[action] if served == 1 else 1.0 - service[action]
            rest, target, scale = state, 0, 1
            carried = 0
            # Queues from the last to the first: the last digit of a state is the last queue.
            for step in range(n):
                queue = n - 1 - step
                x = rest % levels[queue]
                rest //= levels[queue]
                if served == 1 and queue == action and x > 0:
                    x -= 1
                targets[count + step] = x
            if served == 1:
                own = (state // _scale(levels, action)) % levels[action]
                if own > 0 and action + 1 < n:
                    carried = 1
            for step in range(n):
                queue = n - 1 - step
                x = targets[count + step]
                if carried == 1 and queue == action + 1 and x < levels[queue] - 1:
                    x += 1
                if (subset >> queue) & 1:
                    p *= arrival[queue]
                    if x < levels[queue] - 1:
                        x += 1
                else:
                    p *= 1.0 - arrival[queue]
                target += x * scale
                scale *= levels[queue]
            if p > 0.0:
                place = count
                while place > 0 and targets[place - 1] > target:
                    place -= 1
                if place > 0 and targets[place - 1] == target:
                    chances[place - 1] += p
                else:
                    for k in range(count, place, -1):
                        targets[k] = targets[k - 1]
                        chances[k] = chances[k - 1]
                    targets[place] = target
                    chances[place] = p
                    count += 1
    return count


@kernel
def _scale(levels, queue):
    """What one job in `queue` adds to the number of a state."""
    scale = 1
    for later in range(queue + 1, levels.size):
        scale *= levels[later]
    return scale


@kernel
def queue_counts(levels, arrival, service, states, targets, chances, counts):
    """Number of next states of each pair of `states` and actions (the queue that is served)."""
    n_actions = service.size
    for i in range(states.size):
        for a in range(n_actions):
            counts[i * n_actions + a] = _queue_row(levels, n_actions, arrival, service, states[i], a, targets, chances)


@kernel
def queue_rows(levels, arrival, service, states, targets, chances, indptr, data, indices):
    """Fill the rows that `queue_counts` counts."""
    n_actions = service.size
    for i in range(states.size):
        for a in range(n_actions):
            row = i * n_actions + a
            count = _queue_row(levels, n_actions, arrival, service, states[i], a, targets, chances)
            for k in range(count):
                data[indptr[row] + k] = chances[k]
                indices[indptr[row] + k] = targets[k]
