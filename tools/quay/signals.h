/* Signals that would end the program while a temporary file of its has a name. */
#ifndef QUAY_TOOLS_SIGNALS_H
#define QUAY_TOOLS_SIGNALS_H

/* From here on they ask to stop and do nothing else. One that the parent has set to be ignored
 * (nohup) stays ignored. */
void signals_catch(void);

/* The signal that asked to stop; 0: none. */
int signals_asked(void);

/* They do again what they did before signals_catch(), and so does the one that asked meanwhile. */
void signals_release(void);

#endif
