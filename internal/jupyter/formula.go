package jupyter

import (
	"regexp"
	"strings"
)

// Clients typeset formulas in text, Markdown and HTML. Some commands of TeX link, style or define others, and
// extensions add more. So only formulas with these commands pass. They show something, and take no address and no
// style.
const (
	formulaCommands = ` alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau
		upsilon phi chi psi omega varepsilon vartheta varpi varrho varsigma varphi Gamma Delta Theta Lambda Xi Pi Sigma
		Upsilon Phi Psi Omega frac dfrac tfrac cfrac sqrt binom dbinom tbinom over choose sum prod coprod int iint iiint
		oint lim limsup liminf sup inf max min arg argmax argmin det dim exp gcd hom ker lg ln log Pr deg sin cos tan cot
		sec csc sinh cosh tanh coth arcsin arccos arctan operatorname mod bmod pmod pod left right middle big Big bigg
		Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr cdot cdots ldots dots vdots ddots times div pm mp ast star circ
		bullet oplus ominus otimes oslash odot cap cup uplus sqcap sqcup vee wedge setminus wr amalg dagger ddagger leq
		le geq ge neq ne lt gt ll gg approx sim simeq cong equiv propto prec succ preceq succeq subset supset subseteq
		supseteq in ni notin not mid nmid parallel perp models vdash dashv asymp doteq bowtie smile frown to gets
		leftarrow rightarrow leftrightarrow Leftarrow Rightarrow Leftrightarrow longleftarrow longrightarrow
		Longleftarrow Longrightarrow iff implies impliedby mapsto longmapsto uparrow downarrow updownarrow Uparrow
		Downarrow nearrow searrow swarrow nwarrow hookrightarrow hookleftarrow rightharpoonup forall exists nexists neg
		lnot land lor infty partial nabla hbar ell Re Im aleph beth wp emptyset varnothing angle triangle square prime
		backslash top bot flat natural sharp clubsuit diamondsuit heartsuit spadesuit langle rangle lfloor rfloor lceil
		rceil lbrace rbrace lbrack rbrack lvert rvert lVert rVert vert Vert overline underline overbrace underbrace
		overset underset stackrel hat widehat check tilde widetilde acute grave dot ddot breve bar vec overrightarrow
		overleftarrow mathrm mathbf mathit mathsf mathtt mathcal mathbb mathfrak mathscr boldsymbol bf rm it sf tt cal
		text textbf textit textrm textsf texttt mbox displaystyle textstyle scriptstyle scriptscriptstyle limits nolimits
		quad qquad enspace thinspace space substack hline mathop mathbin mathrel mathord mathopen mathclose boxed cancel
		phantom hphantom vphantom `
	formulaBlocks = ` matrix pmatrix bmatrix Bmatrix vmatrix Vmatrix smallmatrix array cases align align* aligned equation
		equation* gather gather* gathered split `
)

var (
	commands = regexp.MustCompile(`\\[A-Za-z]+`)
	blocks   = regexp.MustCompile(`\\(?:begin|end)\{([a-zA-Z]+\*?)\}`)
)

// safeFormulas reports whether all commands of the formulas in a text are known to do no more than to show something.
func safeFormulas(text string) bool {
	for _, block := range blocks.FindAllStringSubmatch(text, -1) {
		if !listed(formulaBlocks, block[1]) {
			return false
		}
	}
	for _, command := range commands.FindAllString(blocks.ReplaceAllString(text, " "), -1) {
		if !listed(formulaCommands, command[1:]) {
			return false
		}
	}
	return true
}

// listed reports whether a list of words, with white space between them, has one.
func listed(words, word string) bool {
	for one := range strings.FieldsSeq(words) {
		if one == word {
			return true
		}
	}
	return false
}
