package nesting

import "testing"

func TestCheck(t *testing.T) {
	for text, want := range map[string]bool{
		``: true, `1`: true, `[[[1]]]`: true, `[[[[1]]]]`: false, `{"a":[{"b":1}]}`: true, `{"a":[{"b":[1]}]}`: false,
		`[[],[],[]]`: false, `[[],[]]`: true,
		`[1,2,3,4]`: true, `[1,2,3,4,5,6]`: false, `["[[[[",",,,,,,"]`: true, `["\"[[[["]`: true, `["\\",[[[1]]]]`: false,
		`"\`: true, `]]]][[[`: true,
	} {
		if err := Check([]byte(text), 3, 5); (err == nil) != want {
			t.Errorf("%s: %v", text, err)
		}
	}
}
