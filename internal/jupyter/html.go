package jupyter

import (
	"fmt"
	"regexp"
	"strings"

	"golang.org/x/net/html"
)

// plainTags and plainAttributes are the elements and attributes that pass in a page of Jupyter.
const (
	plainTags = " table thead tbody tfoot tr th td caption p div span br hr b i u em strong small sub sup code pre " +
		"h1 h2 h3 h4 h5 h6 ul ol li dl dt dd blockquote img "
	plainAttributes = " title colspan rowspan align valign border alt width height "
)

// framedTags and framedAttributes pass in a frame in addition to these. No element there has other rules for what is
// text and what a tag, but style, which has the same in every browser.
const (
	framedTags = " style a abbr address article aside center col colgroup del details figcaption figure font footer " +
		"header ins kbd label main mark meter nav progress s samp section summary var "
	framedAttributes = " id class style color bgcolor face size cellpadding cellspacing span " +
		"scope lang dir open value max "
)

// plainValues are the values that pass in attributes of other names: pandas has them in its tables.
var plainValues = map[string]*regexp.Regexp{
	"style": regexp.MustCompile(`^\s*text-align:\s*(left|right|center)\s*;?\s*$`),
	"class": regexp.MustCompile(`^dataframe$`),
	"src":   regexp.MustCompile(`^data:image/(png|jpeg|gif|webp|svg\+xml);base64,[A-Za-z0-9+/=]*$`),
}

// rawTags are elements whose content is no HTML. It does not pass.
const rawTags = " script title textarea iframe noembed noframes noscript plaintext xmp "

// pandasStyle is the style sheet before a table of pandas, which says what Jupyter's own does.
var pandasStyle = regexp.MustCompile(`(?s)<style scoped>\s*\.dataframe tbody tr th.*?</style>`)

// safeHTML returns HTML that runs no script and fetches nothing. It has the same elements if they are all plain.
// Otherwise it is a frame, without scripts and network, with more kinds of elements.
func safeHTML(text string) string {
	if clean, same := rewrite(pandasStyle.ReplaceAllString(text, ""), false); same {
		return clean
	}
	return framed(text)
}

// has reports whether a list of names has one.
func has(names, name string) bool { return name != "" && strings.Contains(names, " "+name+" ") }

// rewrite writes HTML again with the elements and attributes that pass, in a frame or without one. same is false if
// there were others.
func rewrite(text string, frame bool) (clean string, same bool) {
	var out, shown strings.Builder // shown is the text alone: a browser may join pieces of it
	same = true
	skip := false // the content of an element of rawTags comes
	for z := html.NewTokenizer(strings.NewReader(text)); ; {
		kind := z.Next()
		token := z.Token()
		passes := has(plainTags, token.Data) || frame && has(framedTags, token.Data)
		switch {
		case kind == html.ErrorToken:
			return out.String(), same && safeFormulas(shown.String())
		case kind == html.TextToken && skip:
		case kind == html.TextToken && frame && strings.HasSuffix(out.String()[max(0, out.Len()-7):], "<style>"):
			out.WriteString(token.Data) // its end tag ends it
		case kind == html.TextToken:
			shown.WriteString(token.Data)
			out.WriteString(html.EscapeString(token.Data))
		case kind == html.CommentToken || kind == html.DoctypeToken:
		case !passes:
			same = false
		case kind == html.EndTagToken:
			out.WriteString("</" + token.Data + ">")
		default:
			attributes, all := rewriteAttributes(token.Attr, frame && token.Data != "style", frame)
			same = same && all
			out.WriteString("<" + token.Data + attributes + ">")
		}
		skip = kind == html.StartTagToken && has(rawTags, token.Data)
	}
}

// rewriteAttributes writes attributes that pass; all is false if there were others.
func rewriteAttributes(list []html.Attribute, more, frame bool) (text string, all bool) {
	all = true
	for _, a := range list {
		allowed := plainValues[a.Key]
		passes := has(plainAttributes, a.Key) || more && has(framedAttributes, a.Key) ||
			allowed != nil && allowed.MatchString(a.Val) && (!frame || more)
		if passes && a.Namespace == "" {
			text += " " + a.Key + `="` + html.EscapeString(a.Val) + `"`
		} else {
			all = false
		}
	}
	return text, all
}

// framePolicy keeps a frame from fetching anything. Its sandbox keeps it from running scripts and from leaving.
const framePolicy = `<meta http-equiv="Content-Security-Policy" content="default-src 'none'; ` +
	`style-src 'unsafe-inline'; img-src data:; font-src data:; media-src data:">`

// framed returns a frame with HTML.
func framed(text string) string {
	clean, _ := rewrite(text, true)
	if strings.Contains(strings.ToLower(text), "<script") {
		clean += "<p><small>[scripts of this output do not run: see unitask kernel install --trust-output]</small></p>"
	}
	lines := strings.Count(clean, "<tr") + strings.Count(clean, "<p") + strings.Count(clean, "<div") +
		strings.Count(clean, "<br")
	return fmt.Sprintf(`<iframe sandbox="" srcdoc="%s" `+
		`style="width:100%%;height:%dem;border:0;resize:vertical;overflow:auto"></iframe>`,
		escaped.Replace(framePolicy+clean), min(max(lines*2, 10), 36))
}
