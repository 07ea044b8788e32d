const d = (t: any): any => t;
@d class Colour { red = 1 }
console.log(Colour);
