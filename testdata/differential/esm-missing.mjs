import './not-there.mjs';
