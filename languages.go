package unitask

import (
	"github.com/unitask/unitask/guest/contract"
)

// mainLink is what every language runs; its target is the code.
const mainLink = contract.MainLink
