package guest

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/unitask/unitask/guest/contract"
)

func TestReadFrame(t *testing.T) {
	for name, c := range map[string]struct {
		in       []byte
		kind     byte
		payload  string
		protocol bool // the error is a protocol violation
		err      bool
	}{
		"lies: more than the limit":       {[]byte{0, 0x10, 0, 1, 'o'}, 0, "", true, true},
		"lies: four gigabytes":            {[]byte{0xff, 0xff, 0xff, 0xff, 'o'}, 0, "", true, true},
		"lies: hello of a megabyte":       {[]byte{0, 0x10, 0, 0, 'h'}, 0, "", true, true},
		"lies: exit a byte over":          {[]byte{0, 0, 0x10, 1, 'x'}, 0, "", true, true},
		"lies: more than comes":           {[]byte{0, 0, 0, 9, 'o', 'a'}, 0, "", false, true},
		"unknown type":                    {[]byte{0, 0, 0, 0, 'Q'}, 0, "", true, true},
		"a type that only the host sends": {[]byte{0, 0, 0, 0, 'S'}, 0, "", true, true},
		"empty":                           {nil, 0, "", false, true},
		"half a header":                   {[]byte{0, 0, 0}, 0, "", false, true},
		"lies: a program's part":          {[]byte{0, 0x10, 0, 1, 'p'}, 0, "", true, true},
		"the end of a program":            {[]byte{0, 0, 0, 0, 'p'}, 'p', "", false, false},
		"output":                          {[]byte{0, 0, 0, 2, 'o', 'h', 'i'}, 'o', "hi", false, false},
		"nothing in it":                   {[]byte{0, 0, 0, 0, 's'}, 's', "", false, false},
	} {
		kind, payload, _, err := readFrame(bytes.NewReader(c.in), nil)
		var violation *ProtocolError
		if (err != nil) != c.err || errors.As(err, &violation) != c.protocol || kind != c.kind ||
			string(payload) != c.payload {
			t.Errorf("%s: %q %q %v", name, kind, payload, err)
		}
	}
}

// Reading returns what was written, and never accepts more than the limit.
func FuzzReadFrame(f *testing.F) {
	f.Add(appendFrame(nil, 'o', []byte("hello")))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 'o'})
	f.Add(append(appendFrame(nil, 'p', []byte("program")), appendFrame(nil, 'p', nil)...))
	f.Add(append(appendFrame(nil, 'h', []byte("{}")), appendFrame(nil, 'x', []byte(`{"code":1}`))...))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		var buf, back []byte
		for {
			kind, payload, grown, err := readFrame(r, buf)
			if cap(grown) > contract.MaxFrame {
				t.Fatalf("%d bytes of buffer", cap(grown))
			}
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.As(err, new(*ProtocolError)) {
					t.Fatalf("%v", err)
				}
				break
			}
			buf = grown
			back = appendFrame(back, kind, payload)
		}
		if !bytes.HasPrefix(in, back) {
			t.Fatal("what was read is not what was written")
		}
	})
}
