cat | wc -c; cat; echo end
