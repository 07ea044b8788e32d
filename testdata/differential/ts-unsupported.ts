enum Colour { Red } console.log(Colour.Red);
