const x: = 5;
