# ruff: noqa
"""Removes nothing when there is less than asked for."""


class Node:
    def __init__(self, tokens, parent):
        self.tokens = list(tokens)
        self.parent = parent
        self.children = {}  # first token -> Node
        self.locks = 0
        self.last_used = 0


class MyRadixTree:
    def __init__(self):
        self.root = Node([], None)
        self.clock = 0

    def match(self, tokens):
        node, matched, inside = self._walk(tokens)
        self._use(node)
        if inside is not None:
            inside.last_used = self.clock
        return matched

    def insert(self, tokens):
        node, matched = self._cut(tokens)
        if matched < len(tokens):
            leaf = Node(tokens[matched:], node)
            node.children[leaf.tokens[0]] = leaf
            node = leaf
        self._use(node)
        return matched

    def lock(self, tokens):
        node, _ = self._cut(tokens)
        while node is not self.root:
            node.locks += 1
            node = node.parent

    def unlock(self, tokens):
        node, _ = self._cut(tokens)
        while node is not self.root:
            node.locks -= 1
            node = node.parent

    def evict(self, num_tokens):
        gone = 0
        if self.num_evictable < num_tokens:
            return 0
        while gone < num_tokens:
            leaves = [node for node in self._nodes() if not node.children and not node.locks]
            if not leaves:
                break
            oldest = min(leaves, key=lambda node: node.last_used)
            del oldest.parent.children[oldest.tokens[0]]
            gone += len(oldest.tokens)
        return gone

    @property
    def num_tokens(self):
        return sum(len(node.tokens) for node in self._nodes())

    @property
    def num_evictable(self):
        return sum(len(node.tokens) for node in self._nodes() if not node.locks)

    def _walk(self, tokens):
        """(last node that is matched whole, tokens matched, child in which the path ends or None)."""
        node, matched = self.root, 0
        while matched < len(tokens) and tokens[matched] in node.children:
            child = node.children[tokens[matched]]
            same = 0
            while same < len(child.tokens) and matched + same < len(tokens):
                if child.tokens[same] != tokens[matched + same]:
                    break
                same += 1
            matched += same
            if same < len(child.tokens):
                return node, matched, child
            node = child
        return node, matched, None

    def _cut(self, tokens):
        """The same, splitting the node in which the path ends: (node where it ends, tokens matched)."""
        node, matched, child = self._walk(tokens)
        if child is None:
            return node, matched
        before, at = 0, node
        while at is not self.root:
            before += len(at.tokens)
            at = at.parent
        k = matched - before
        upper = Node(child.tokens[:k], node)
        upper.locks, upper.last_used = child.locks, child.last_used
        node.children[upper.tokens[0]] = upper
        child.tokens, child.parent = child.tokens[k:], upper
        upper.children[child.tokens[0]] = child
        return upper, matched

    def _use(self, node):
        self.clock += 1
        while node is not None:
            node.last_used = self.clock
            node = node.parent

    def _nodes(self):
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


EXPECT = "takes what it can"  # the message must contain this
