package httpapi

import "testing"

// Each operation of the document has a function, and each function an operation; New panics otherwise.
func TestDocument(t *testing.T) {
	s := New(Options{Version: "1"})
	if len(s.doc.operations) == 0 || len(s.doc.text) == 0 {
		t.Error("the document is empty")
	}
}
