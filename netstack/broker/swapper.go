package broker

// swapperKey says which secrets are put in (a bit each), and how they are written.
type swapperKey struct {
	put     uint64
	written encoding
}

// swapper returns the one for a place: those secrets are put in, and the placeholder of
// every other one, in whatever form, is misdirected.
func (b *Broker) swapper(key swapperKey) *swapper {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s, ok := b.swappers[key]; ok {
		return s
	}
	var list []pair
	put := map[string]bool{}
	for i := range b.cfg.Secrets {
		if s := &b.cfg.Secrets[i]; key.put&(1<<i) != 0 && !put[s.Name] {
			put[s.Name] = true
			list = append(list, pair{find: []byte(s.placeholder), put: key.written.of(s.Value), secret: s})
		}
	}
	for i := range b.cfg.Secrets {
		s := &b.cfg.Secrets[i]
		if put[s.Name] || s.Misdirected == Pass {
			continue
		}
		list = append(list, pair{find: []byte(s.placeholder), secret: s, refuse: true})
		for _, p := range hidden(s.placeholder, s.placeholder) {
			list = append(list, pair{find: p.find, secret: s, refuse: true})
		}
	}
	s := newSwapper(distinct(list))
	b.swappers[key] = s
	return s
}
