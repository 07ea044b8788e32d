package broker

// swapperKey selects the secrets to put in (a bit each), and their encoding.
type swapperKey struct {
	put     uint64
	written encoding
}

// swapper returns the swapper for a place: it puts in the selected secrets. Any other secret's placeholder, in
// any form, is misdirected.
func (b *Broker) swapper(key swapperKey) *swapper {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, ok := b.swappers[key]; ok {
		return s
	}
	var list collection
	put := map[string]bool{}
	for i := range b.cfg.Secrets {
		if s := &b.cfg.Secrets[i]; key.put&(1<<i) != 0 && !put[s.Name] {
			put[s.Name] = true
			list.add(pair{find: []byte(s.placeholder), put: key.written.of(s.Value), secret: s})
		}
	}
	for i := range b.cfg.Secrets {
		s := &b.cfg.Secrets[i]
		if put[s.Name] || s.Misdirected == Pass {
			continue
		}
		list.add(pair{find: []byte(s.placeholder), secret: s, refuse: true})
		hidden(s.placeholder, s.placeholder, func(p pair) { list.add(pair{find: p.find, secret: s, refuse: true}) })
	}
	s := newSwapper(list.pairs)
	b.swappers[key] = s
	return s
}
