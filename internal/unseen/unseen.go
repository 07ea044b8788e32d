// Package unseen finds characters that a person does not see, so that no name or text hides something. It changes no
// text. The packages that show text which somebody else chose call it.
package unseen

import "unicode"

// Is reports whether a character has no shape of its own, is a control character, or separates lines. U+2800 is a
// blank of Braille. Other blanks are seen as such.
func Is(r rune) bool {
	return r == '\u2800' || unicode.In(r, unicode.Cf, unicode.Cc, unicode.Zl, unicode.Zp, unicode.Variation_Selector,
		unicode.Other_Default_Ignorable_Code_Point)
}
