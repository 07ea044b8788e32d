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
	for i := range b.cfg.Secrets {
		s := &b.cfg.Secrets[i]
		find := []byte(s.placeholder)
		if key.put&(1<<i) != 0 {
			list = append(list, pair{find: find, put: key.written.of(s.Value), secret: s})
			continue
		}
		if b.cfg.Misdirected == Pass {
			continue
		}
		list = append(list, pair{find: find, secret: s, refuse: true})
		for _, p := range hidden(s.placeholder, s.placeholder) {
			list = append(list, pair{find: p.find, secret: s, refuse: true})
		}
	}
	s := newSwapper(distinct(list))
	b.swappers[key] = s
	return s
}

// newRedactor returns what puts placeholders in place of values in answers.
func newRedactor(secrets []Secret) (s *swapper, resizes bool) {
	var list []pair
	for i := range secrets {
		c := &secrets[i]
		forms := append([]pair{{find: []byte(c.Value), put: []byte(c.placeholder)}}, hidden(c.Value, c.placeholder)...)
		for _, p := range append(forms, escaped(c.Value, c.placeholder)...) {
			resizes = resizes || len(p.find) != len(p.put)
			p.secret = c
			list = append(list, p)
		}
	}
	return newSwapper(distinct(list)), resizes
}
