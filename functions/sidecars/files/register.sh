trap 'exit 0' TERM INT
{{each spiffe}}until [ -s "$TOKEN" ]; do sleep 1; done
python -c 'import base64, json, sys; p = sys.stdin.read().split(".")[1]; print(json.loads(base64.urlsafe_b64decode(p + "=" * (-len(p) % 4)))["sub"], end="")' <"$TOKEN" >/shared/client-id.txt
{{end spiffe}}{{each name}}printf %s "$CLIENT_NAME" >/shared/client-id.txt
{{end name}}{{each keycloak}}registered=
while :; do
  for name in KEYCLOAK_URL KEYCLOAK_REALM KEYCLOAK_TOKEN_EXCHANGE_ENABLED; do
    value=
    IFS= read -r value <"{{MountPath}}/$name" || [ -n "$value" ]
    export "$name=$value"
  done
  settings="$KEYCLOAK_URL $KEYCLOAK_REALM $KEYCLOAK_TOKEN_EXCHANGE_ENABLED"
  if [ "$settings" != "$registered" ] && python client_registration.py; then registered=$settings; fi
  sleep 5 & wait $!
done
{{end keycloak}}{{each cloud}}while :; do sleep 3600 & wait $!; done
{{end cloud}}