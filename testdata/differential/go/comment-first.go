/* package other
 */
// package wrong

package /* here */ main // and there

import "fmt"

func main() { fmt.Println("//go:generate is no directive of these") }
