#include "signals.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

static const int signals[] = {SIGINT,  SIGQUIT, SIGTERM,   SIGHUP,  SIGXCPU, SIGUSR1,
                              SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO,   SIGPWR};
enum {
  SIGNALS = sizeof signals / sizeof signals[0]
};

static struct sigaction before[SIGNALS];
static bool caught[SIGNALS];
static volatile sig_atomic_t asked;

static void ask_to_stop(int number) {
  asked = number;
}

void signals_catch(void) {
  for (size_t i = 0; i < SIGNALS; ++i) {
    struct sigaction action = {.sa_handler = ask_to_stop, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    caught[i] = sigaction(signals[i], NULL, &before[i]) == 0 && before[i].sa_handler != SIG_IGN &&
                sigaction(signals[i], &action, NULL) == 0;
  }
}

int signals_asked(void) {
  return asked;
}

void signals_release(void) {
  for (size_t i = 0; i < SIGNALS; ++i) {
    if (caught[i])
      (void)sigaction(signals[i], &before[i], NULL);
    caught[i] = false;
  }
  const int number = asked;
  asked = 0;
  if (number != 0)
    (void)raise(number);
}
