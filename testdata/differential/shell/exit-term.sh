echo x; kill $$; sleep 5
