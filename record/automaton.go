package record

import "slices"

// automaton finds any of a set of strings (Aho and Corasick, CACM 18/6, 1975). The strings are few and long, so a
// node has a list of children instead of a table.
type automaton struct {
	nodes []acNode
	root  [256]int32 // the root's children, 0 for none

	// The next node for each character after each child of the root, once linked. Most texts that begin like a
	// secret end there, and the root has many children.
	second [256]*[256]int32
}

type acNode struct {
	child, sibling int32 // 0: none
	fail           int32
	depth          int32
	match          int32 // the length of the longest string that ends here
	char           byte
}

func newAutomaton() *automaton { return &automaton{nodes: make([]acNode, 1)} }

// next returns the child of a node for a character, 0 for none.
func (m *automaton) next(at int32, c byte) int32 {
	if at == 0 {
		return m.root[c]
	}
	for to := m.nodes[at].child; to != 0; to = m.nodes[to].sibling {
		if m.nodes[to].char == c {
			return to
		}
	}
	return 0
}

// insert adds a string, before link.
func (m *automaton) insert(s string) {
	if s == "" {
		return
	}
	at := int32(0)
	for i := range len(s) {
		to := m.next(at, s[i])
		if to == 0 {
			to = int32(len(m.nodes))
			m.nodes = append(m.nodes, acNode{char: s[i], depth: m.nodes[at].depth + 1, sibling: m.nodes[at].child})
			if at == 0 {
				m.nodes[to].sibling = 0
				m.root[s[i]] = to
			} else {
				m.nodes[at].child = to
			}
		}
		at = to
	}
	m.nodes[at].match = m.nodes[at].depth
}

// link sets each node's fallback, breadth first.
func (m *automaton) link() {
	var queue []int32
	for _, to := range m.root {
		if to != 0 {
			queue = append(queue, to)
		}
	}
	for _, at := range slices.Clone(queue) {
		var table [256]int32
		for c := range table {
			if table[c] = m.next(at, byte(c)); table[c] == 0 {
				table[c] = m.root[c]
			}
		}
		m.second[m.nodes[at].char] = &table
	}
	for ; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		n := &m.nodes[at]
		n.match = max(n.match, m.nodes[n.fail].match)
		for to := n.child; to != 0; to = m.nodes[to].sibling {
			m.nodes[to].fail = m.step(n.fail, m.nodes[to].char)
			queue = append(queue, to)
		}
	}
}

// step returns the state after a character.
func (m *automaton) step(at int32, c byte) int32 {
	for {
		if n := &m.nodes[at]; n.depth == 1 {
			if table := m.second[n.char]; table != nil {
				return table[c]
			}
		}
		if to := m.next(at, c); to != 0 || at == 0 {
			return to
		}
		at = m.nodes[at].fail
	}
}
