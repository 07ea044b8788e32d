package broker

import "slices"

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

// Of a value that stands as it is, pieces are found too, of half its length and more: what
// a server cuts off, at a place that the guest may choose, leaves almost all of it.
const (
	minPiece  = 10
	maxPieces = 2 << 10 // bytes of the longest value: the time to look for pieces grows with its square
)

// newRedactor returns what puts placeholders in place of values in answers; fit keeps
// every length as it is.
func newRedactor(secrets []Secret, fit bool) (s *swapper, resizes bool) {
	var list []pair
	for i := range secrets {
		c := &secrets[i]
		if slices.ContainsFunc(secrets[:i], c.same) {
			continue
		}
		whole := pair{find: []byte(c.Value), put: []byte(c.placeholder)}
		if least := max(minPiece, (len(c.Value)+1)/2); least < len(c.Value) && len(c.Value) <= maxPieces {
			whole.least = least
		}
		forms := append([]pair{whole}, hidden(c.Value, c.placeholder)...)
		for _, p := range slices.Concat(forms, spelled(c.Value, c.placeholder), escaped(c.Value, c.placeholder)) {
			if fit {
				p.put = fitted(p.put, len(p.find))
			}
			resizes = resizes || len(p.find) != len(p.put)
			p.secret = c
			list = append(list, p)
		}
	}
	return newSwapper(distinct(list)), resizes
}
