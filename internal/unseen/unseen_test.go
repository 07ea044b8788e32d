package unseen

import "testing"

func TestIs(t *testing.T) {
	for _, r := range "\x00\x1b\r\n\t\x7f\u0085\u00ad\u034f\u115f\u1160\u17b4\u180b\u200b\u200d\u2028\u2029\u202e\u2066" +
		"\u2800\u3164\ufe0f\ufeff\uffa0\U000e0041\U000e0100" {
		if !Is(r) {
			t.Errorf("U+%04X is seen", r)
		}
	}
	for _, r := range "a é日 \u00a0\u3000\u0301😀⟨\ufffd" {
		if Is(r) {
			t.Errorf("U+%04X is not seen", r)
		}
	}
}
