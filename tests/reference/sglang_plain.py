"""SGLang 0.5.23 stated plainly: every request is walked in every step, tokens are lists, a victim is found by looking at
every leaf. Slow, and meant to be read beside `docs/systems/sglang.md`; the shipped model must decide like this one.

`record(config, workload)` runs a load and writes a recording like those of the real system.
"""

from __future__ import annotations

from typing import Any

CLIP, RETRACT_STEPS = 4096, 20


class PoolExhausted(Exception):
    """A cut request must go on although nothing is free: the real server stops with an error here."""


class Node:
    def __init__(self, parent: Any, tokens: list[int], time: int, priority: int) -> None:
        self.parent, self.tokens, self.priority = parent, tokens, priority
        self.children: list[Node] = []
        self.time = self.created = time
        self.locks = self.hits = 0


class Tree:
    def __init__(self, page: int, policy: str = "lru", keeps_age: bool = True) -> None:
        self.page, self.policy, self.keeps_age, self.now = page, policy, keeps_age, 0
        self.root = Node(None, [], 0, -(1 << 63))

    def tick(self) -> int:
        self.now += 1
        return self.now

    def nodes(self) -> list[Node]:
        found, todo = [], list(self.root.children)
        while todo:
            node = todo.pop()
            found.append(node)
            todo += node.children
        return found

    def size(self, locked: bool) -> int:
        return sum(len(n.tokens) for n in self.nodes() if (n.locks > 0) == locked)

    def step_down(self, node: Node, rest: list[int], time: int) -> tuple[Node, int] | None:
        """The child that shares at least a page with `rest`, cut where they part; and how much it shares."""
        for place, child in enumerate(node.children):
            shared = 0
            while shared < min(len(child.tokens), len(rest)) and child.tokens[shared] == rest[shared]:
                shared += 1
            shared -= shared % self.page
            if shared == 0:
                continue
            if shared < len(child.tokens):
                front = Node(node, child.tokens[:shared], time, child.priority)
                front.created = child.created if self.keeps_age else self.tick()
                front.locks, front.hits, front.children = child.locks, child.hits, [child]
                child.parent, child.tokens, child.time = front, child.tokens[shared:], time
                node.children[place] = child = front
            child.time = time
            return child, shared
        return None

    def match(self, tokens: list[int]) -> tuple[int, Node]:
        tokens = tokens[: len(tokens) - len(tokens) % self.page]
        node, at, time = self.root, 0, self.tick()
        while at < len(tokens) and (step := self.step_down(node, tokens[at:], time)):
            node, at = step[0], at + step[1]
        return at, node

    def insert(self, tokens: list[int], priority: int = 0, counted: int = 0) -> tuple[int, Node]:
        tokens = tokens[: len(tokens) - len(tokens) % self.page]
        node, at, time = self.root, 0, self.tick()
        while at < len(tokens) and (step := self.step_down(node, tokens[at:], time)):
            node, at = step[0], at + step[1]
            node.priority = max(node.priority, priority)
            node.hits += at > counted
        found = at
        if at < len(tokens):
            leaf = Node(node, tokens[at:], self.tick(), priority)
            leaf.hits = int(len(tokens) > counted)
            node.children.append(leaf)
            node = leaf
        return found, node

    def lock(self, node: Node | None, by: int) -> None:
        while node is not None and node.parent is not None:
            node.locks += by
            node = node.parent

    def key(self, node: Node) -> tuple[Any, ...]:
        return {
            "lru": (node.time,),
            "lfu": (node.hits, node.time),
            "fifo": (node.created,),
            "filo": (-node.created,),
            "mru": (-node.time,),
            "slru": (node.hits >= 2, node.time),
            "priority": (node.priority, node.time),
        }[self.policy]

    def evict(self, asked: int) -> int:
        gone = 0
        while gone < asked:
            leaves = [n for n in self.nodes() if not n.children and n.locks == 0]
            if not leaves:
                break
            victim = min(leaves, key=self.key)
            victim.parent.children.remove(victim)
            gone += len(victim.tokens)
        return gone


class Req:
    def __init__(self, row: dict[str, Any], index: int, has_priority: bool) -> None:
        self.id, self.prompt, self.max_new, self.index = (
            row["id"],
            row["prompt_token_ids"],
            row["output_len"],
            index,
        )
        self.priority = row.get("priority", 0) if has_priority else 0
        self.num_out = self.entered = self.entered_tokens = self.fill = 0
        self.done = False
        self.reset()

    def reset(self) -> None:
        self.prefix = self.end = self.protected = self.inserted = self.matched = self.held = 0
        self.node: Node | None = None
        self.lock: Node | None = None

    def known(self) -> list[int]:
        return self.prompt + [1_000_000 + 10_000 * self.index + j for j in range(self.num_out)]

    def left(self) -> int:
        return min(self.max_new - self.num_out, CLIP)


class PlainSglang:
    def __init__(self, config: dict[str, Any]) -> None:
        self.c = config
        self.page = config["page_size"]
        self.total = config["max_total_tokens"] // self.page * self.page
        self.tree = Tree(
            self.page, config["radix_eviction_policy"], config.get("cache", "unified") == "unified"
        )
        self.off = config["disable_radix_cache"]
        self.chunk_size = (
            config["chunked_prefill_size"] if (config["chunked_prefill_size"] or -1) > 0 else None
        )
        self.mixes = config["enable_mixed_chunk"] and self.chunk_size is not None
        self.preempts = config["enable_priority"] and not config.get("disable_priority_preemption", False)
        aware = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")
        self.policy = "fcfs" if self.off and config["schedule_policy"] in aware else config["schedule_policy"]
        self.first_ratio = min(0.7 * config["schedule_conservativeness"], 1.0)
        self.ratio, self.least_ratio = self.first_ratio, min(self.first_ratio * 0.14, 1.0)
        self.waiting: list[Req] = []
        self.running: list[Req] = []
        self.last: list[Req] = []
        self.chunked: Req | None = None
        self.full = False
        self.free = self.total
        self.passes = self.entries = self.processed = self.pause = 0

    # memory: `held` slots are the request's own, beyond its protected prefix

    def room(self, need: int) -> bool:
        short = need - self.free
        if short > 0 and not self.off:
            gone = self.tree.evict(short)
            self.free += gone
            self.evictions.append([short, gone])
        return self.free >= need

    def ceil(self, n: int) -> int:
        return -(-n // self.page) * self.page

    def take(self, req: Req, up_to: int) -> None:
        more = self.ceil(up_to) - req.protected - req.held
        if self.free < more:
            raise PoolExhausted
        req.held += more
        self.free -= more

    def checkpoint(self, req: Req, up_to: int) -> None:
        if self.off:
            return
        whole = up_to - up_to % self.page
        tokens = req.known()[:whole]
        found, node = self.tree.insert(tokens, req.priority, req.inserted)
        req.inserted = max(req.inserted, whole)
        prompt = len(req.prompt) - len(req.prompt) % self.page
        if 0 < prompt < whole:
            self.tree.insert(tokens[:prompt], req.priority + 1, prompt)
        self.free += found - req.protected  # somebody else had these already
        req.held -= whole - req.protected
        req.protected = whole
        self.tree.lock(req.lock, -1)
        self.tree.lock(node, 1)
        req.lock = node

    def release(self, req: Req, insert: bool, computed: int) -> None:
        if insert:
            self.checkpoint(req, computed)
        self.free += req.held
        req.held = 0
        self.tree.lock(req.lock, -1)
        req.lock = None

    def computed(self, req: Req) -> int:
        return len(req.prompt) + req.num_out - 1

    # queue

    def enter(self, req: Req) -> None:
        self.entries += 1
        req.entered, req.entered_tokens = self.entries, self.processed
        self.waiting.append(req)

    def sort(self) -> None:
        policy, queue = self.policy, self.waiting
        if policy in ("lpm", "hrrn") and len(queue) > 128:
            policy = "nothing"
        if policy in ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first"):
            last = self.match_queue()
            if policy == "lpm":
                queue.sort(key=lambda r: (r in last, 0 if r in last else -r.matched))
            elif policy == "dfs-weight":
                self.waiting = self.by_weight(self.tree.root)
            elif policy == "hrrn":
                queue.sort(key=lambda r: (self.response(r, last), r.id))
            else:
                queue.sort(key=lambda r: (r in last, self.work(r), r.entered))
            return
        if policy == "lof":
            queue.sort(key=lambda r: (r.priority, -r.max_new))
        elif policy == "fcfs" and self.c["enable_priority"]:
            queue.sort(key=lambda r: (r.priority, r.entered))
        if queue and self.c["radix_eviction_policy"] == "lru" and not self.off:
            self.passes += 1
            if self.passes % 32 == 1:
                for req in reversed(queue[:128]):
                    self.tree.match(req.known())

    def match_queue(self) -> list[Req]:
        last, helper = [], Tree(1)
        for req in self.waiting:
            known = req.known()
            req.prefix, req.node = self.tree.match(known)
            req.matched = min(req.prefix, len(known) - 1)
            if req.prefix <= 32:
                if helper.match(known)[0] >= 32:
                    last.append(req)
                else:
                    helper.insert(known)
        return last

    def by_weight(self, node: Node) -> list[Req]:
        below = [self.by_weight(child) for child in node.children]
        below.sort(key=lambda reqs: -len(reqs))
        return [r for reqs in below for r in reqs] + [r for r in self.waiting if r.node is node]

    def response(self, req: Req, last: list[Req]) -> float:
        need = max(0, len(req.prompt) - req.matched)
        if req in last:
            return float("inf")
        return -(self.processed - req.entered_tokens) / need if need else -float("inf")

    def work(self, req: Req) -> int:
        return max(1, len(req.known()) - req.matched)

    # prefill

    def prefill(self) -> list[Req]:
        most = self.c["max_running_requests"]
        if self.preempts or not self.running:
            self.full = False
        if (self.full or not self.waiting) and self.chunked is None:
            return []
        if len(self.running) >= most and self.chunked is None and not self.preempts:
            self.full = True
            return []
        self.sort()
        self.keep = 1.0 if self.c["ignore_eos"] else self.ratio
        decoding = len(self.running) if self.mixes else 0
        self.input = self.c["max_prefill_tokens"] - decoding
        self.chunk = None if self.chunk_size is None else self.chunk_size - decoding
        self.promised: float = 0.0
        for req in self.running:
            self.promised += req.left() * self.keep
        self.promised = decoding + self.promised
        self.taken = decoding
        batch: list[Req] = []
        sent_back: list[Req] = []
        self.states: list[tuple[float, int]] | None = None
        if self.chunked is not None:
            self.chunked = self.continue_chunk(self.chunked, batch)
        for req in list(self.waiting):
            if self.verdict() == "other":
                break
            if len(batch) >= most - len(self.running):
                self.full = True
            if self.full and not (self.preempts and self.preempt(req, sent_back)):
                break
            known = req.known()
            req.fill = len(known)
            req.prefix, req.node = (0, self.tree.root) if self.off else self.tree.match(known[:-1])
            req.protected = req.matched = req.prefix
            verdict = self.try_one(req, batch)
            if verdict == "no token":
                self.full = bool(batch or self.running)
            if verdict != "go on":
                break
        self.waiting = [r for r in self.waiting if r not in batch]
        self.back_to_queue(sent_back)
        if batch:
            need = sum(r.end - r.prefix for r in batch)
            self.room(need if self.page == 1 else need + self.page * len(batch))
            for req in batch:
                self.take(req, req.end)
                self.processed += req.end - req.prefix
        return batch

    def space(self) -> int:
        return self.free + self.tree.size(locked=False)

    def verdict(self) -> str:
        if self.space() - self.promised <= 0 or self.space() - self.taken <= 0:
            return "no token"
        return "other" if self.input <= 0 or (self.chunk is not None and self.chunk <= 0) else "go on"

    def charge(self, length: int, max_new: int) -> None:
        paged = self.ceil(length)
        self.promised += paged + self.page + max_new
        self.taken += paged + self.page
        self.input -= paged
        if self.chunk is not None:
            self.chunk -= paged

    def continue_chunk(self, req: Req, batch: list[Req]) -> Req | None:
        rest = len(req.known()) - req.prefix
        size = min(self.chunk, int(self.space() - self.promised))
        size = size if size > 0 else self.chunk
        if self.policy == "shortest-prefill-first" and self.chunk >= 2 * self.page:
            reserved = 0
            for other in self.waiting:
                charge = self.ceil(self.work(other))
                if self.work(other) >= rest or reserved + charge > self.chunk - self.page:
                    break
                reserved += charge
            if reserved:
                size = min(size, (self.chunk - reserved) // self.page * self.page)
        req.end = req.prefix + min(rest, size)
        batch.append(req)
        self.charge(req.end - req.prefix, 0 if rest > size else min(req.max_new, CLIP))
        return req if rest > size else None

    def try_one(self, req: Req, batch: list[Req]) -> str:
        limit = self.c.get("prefill_max_requests")
        if limit is not None and len(batch) >= limit:
            return "other"
        length = len(req.known()) - req.prefix
        if self.c["ignore_eos"] and self.off:
            need = self.ceil(length) + self.page
            if need > min(self.space() - self.taken, self.space() - self.promised) or not self.plays_out(
                req, batch, need
            ):
                return "no token"
            cut = self.chunk is not None and length > self.chunk
            if cut and self.chunk <= 0:
                return "other"
            return self.admit(req, batch, self.chunk if cut else length, cut)
        self.tree.lock(req.node, 1)  # what it hits cannot be evicted for it
        fits = length + max(req.left(), 0) + self.page < self.space() - self.promised
        self.tree.lock(req.node, -1)
        if not fits:
            return "no token"
        if self.chunk is None:
            if batch and self.ceil(length) >= self.input:
                return "other"
            return self.admit(req, batch, length, False)
        if self.ceil(length) <= self.chunk:
            return self.admit(req, batch, length, False)
        if self.chunked is not None and self.policy == "shortest-prefill-first":
            return "other"
        end = (req.prefix + self.chunk // self.page * self.page) // self.page * self.page
        return self.admit(req, batch, end - req.prefix, True) if end > req.prefix else "other"

    def admit(self, req: Req, batch: list[Req], length: int, cut: bool) -> str:
        req.end = req.prefix + length
        req.lock = req.node
        self.tree.lock(req.lock, 1)
        batch.append(req)
        if cut:
            self.chunked = req
        self.charge(length, 0 if cut else min(req.max_new, CLIP))
        return self.verdict()

    def plays_out(self, req: Req, batch: list[Req], need: int) -> bool:
        def state(r: Req) -> tuple[float, int]:
            return r.max_new * self.keep - r.num_out, len(r.known())

        if self.states is None:
            everybody = [state(r) for r in (req, *self.running, *batch)]
            self.states = sorted((s for s in everybody if s[0] > 0), key=lambda s: s[0])
        elif state(req)[0] > 0:
            later = [i for i, s in enumerate(self.states) if state(req)[0] <= s[0]]
            self.states.insert(later[0] if later else max(0, len(self.states) - 1), state(req))
        freed = 0
        for i, (left, occupied) in enumerate(self.states):
            n = len(self.states) - i
            if self.space() - self.taken - need + freed - left * n <= n:
                return False
            freed += occupied
        return True

    def preempt(self, req: Req, sent_back: list[Req]) -> bool:
        threshold = self.c.get("priority_scheduling_preemption_threshold", 0)
        need: float = req.fill - req.prefix + min(req.max_new, CLIP) - (self.space() - self.promised)
        victims = []
        for other in sorted((r for r in self.running if not r.done), key=lambda r: (-r.priority, -r.entered)):
            if other.priority - req.priority <= threshold:
                break
            victims.append(other)
            need -= other.left() * self.keep
            if need <= 0:
                break
        if not victims or need > 0:
            return False
        for i, other in enumerate([r for r in self.running if r in victims], 1):
            self.promised -= other.left() * self.keep
            self.send_back(other, len(self.running) - i)
            sent_back.append(other)
        self.running = [r for r in self.running if r not in victims]
        return True

    def send_back(self, req: Req, num_left: int) -> None:
        self.release(req, False, 0)
        self.room(num_left * RETRACT_STEPS)
        self.retracted.append({"id": req.id, "prompt": len(req.prompt), "outputs": req.num_out})

    def back_to_queue(self, reqs: list[Req]) -> None:
        for req in reqs:
            req.reset()
            self.enter(req)

    # decode

    def need_pages(self, reqs: list[Req]) -> int:
        return sum(self.page for r in reqs if self.computed(r) % self.page == 0)

    def take_decode(self) -> None:
        self.room(len(self.running) * self.page if self.page > 1 else len(self.running))
        for req in self.running:
            self.take(req, self.computed(req) + 1)

    def decode(self) -> None:
        if self.room(self.need_pages(self.running)):
            self.ratio = max(self.ratio - (self.first_ratio - self.least_ratio) / 600, self.least_ratio)
        else:
            self.retract()
        if self.running:
            self.take_decode()

    def retract(self) -> None:
        by_priority = self.c["retraction_policy"] == "priority"
        keep = sorted(
            self.running,
            key=lambda r: (-r.priority if by_priority else 0, r.num_out, -len(r.prompt)),
            reverse=True,
        )
        dropped: list[Req] = []
        while (not dropped or not self.room(self.need_pages(keep))) and len(keep) > 1:
            dropped.append(keep.pop())
            self.send_back(dropped[-1], len(keep))
        if len(keep) == 1 and not self.room(self.need_pages(keep)):
            self.release(keep[0], False, 0)
            self.aborted.append(keep.pop().id)
        self.running, self.full = keep, False
        outputs, maximum = sum(r.num_out for r in keep), sum(r.max_new for r in keep)
        self.ratio = min(1.0, (outputs + RETRACT_STEPS * len(keep)) / (maximum + 1))
        self.back_to_queue(dropped)

    # one step

    def step(self) -> dict[str, Any]:
        self.evictions: list[list[int]] = []
        self.retracted: list[dict[str, Any]] = []
        row: dict[str, Any] = {"new_token_ratio_before": self.ratio}
        queued = [r.id for r in self.waiting]
        self.settle()
        batch: list[Req] = []
        if not self.waits_for_decode():
            batch = self.prefill()
        mode, rows = "extend" if batch else None, batch
        if batch and self.mixes and self.running and self.room(self.need_pages(self.running)):
            self.take_decode()
            for req in self.running:
                req.fill = len(req.known())
            rows, mode = batch + self.running, "mixed"
            self.processed += len(self.running)
            self.running = []
        if not batch and self.running:
            self.decode()
            rows, mode = self.running, "decode" if self.running else None
        if batch:
            self.pause = self.c.get("prefill_decode_interval", 0)
        row.update(
            mode=mode, new_token_ratio_after=self.ratio, retracted=self.retracted, evictions=self.evictions
        )
        row["running"] = [r.id for r in self.running]
        if mode is not None:
            shown = [
                [r.id, r.prefix, r.end - r.prefix, r.id in queued] if r in batch else [r.id, "decode"]
                for r in rows
            ]
            row["batch"] = [r.id for r in rows] if mode == "decode" else shown
            row["chunked_req"] = self.chunked.id if self.chunked else None
            row["available_after_alloc"] = self.free
            row["evictable_after_alloc"] = self.tree.size(locked=False)
        row["finished"] = self.results(rows, batch)
        self.last = rows if batch else []
        row.update(waiting=[r.id for r in self.waiting], batch_is_full=self.full, available=self.free)
        row.update(evictable=self.tree.size(locked=False), protected=self.tree.size(locked=True))
        return row

    def settle(self) -> None:
        if self.chunked is not None:
            self.checkpoint(self.chunked, self.chunked.end)
            self.chunked.prefix = self.chunked.end
        stay = [r for r in self.last if not r.done and r is not self.chunked]
        if len(stay) < len(self.last) or (stay and not self.running):
            self.full = False
        self.running = self.running + stay
        if any(r.done for r in self.running):
            self.running = [r for r in self.running if not r.done]
            self.full = False

    def waits_for_decode(self) -> bool:
        if self.pause and len(self.running) < self.c.get("prefill_decode_interval_min_bs", 0):
            self.pause = 0
        self.pause, waits = max(0, self.pause - 1), self.pause > 0
        return waits

    def results(self, rows: list[Req], batch: list[Req]) -> list[str]:
        finished = []
        for req in rows:
            if req is self.chunked:
                continue
            req.num_out += 1
            if req.num_out >= req.max_new:
                self.release(req, True, req.end if req in batch else self.computed(req))
                req.done = True
                finished.append(req.id)
            elif req in batch:
                self.checkpoint(req, req.end)
                req.prefix = req.end
        return finished


def record(config: dict[str, Any], workload: list[dict[str, Any]], max_steps: int = 3000) -> dict[str, Any]:
    """Run to the end (or `max_steps`, or to where the pool is exhausted) and write everything down."""
    plain = PlainSglang(config)
    plain.aborted = []
    coming = sorted(range(len(workload)), key=lambda i: workload[i]["arrival_step"])
    steps: list[dict[str, Any]] = []
    num_ended = 0
    while len(steps) < max_steps and num_ended < len(workload):
        added = []
        while coming and workload[coming[0]]["arrival_step"] <= len(steps):
            index = coming.pop(0)
            plain.enter(Req(workload[index], index, config["enable_priority"]))
            added.append(workload[index]["id"])
        try:
            row = plain.step()
        except PoolExhausted:
            break
        steps.append({"step": len(steps), "added": added, **row})
        num_ended = sum(len(s["finished"]) for s in steps) + len(plain.aborted)
    return {
        "system": "sglang",
        "config": config,
        "workload": workload,
        "steps": steps,
        "aborted": plain.aborted,
    }
